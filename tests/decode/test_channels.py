"""A pair of workers over each channel, and what one-sided writes ask for: quarantine and proof."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from engine.engines import greedy, random_prompt
from engine.hash_model import HashModel, expected_tokens
from kit.polling import until
from transfer.wires import CHANNELS
from worker.cluster import (
    DEADLINE_S,
    Answer,
    RouterClient,
    TestWorker,
    decode_worker,
    prefill_worker,
    running,
    session,
)
from worker.proxy import Proxy, proxied

from baton.engine.engine import Engine
from baton.engine.layout.owners import Owner
from baton.proto import common_pb2, worker_pb2
from baton.transfer.channels.local_hub import LocalHub
from baton.transfer.channels.nixl.write_operation import NixlWriteOperation
from baton.transfer.errors import ChannelError
from baton.transfer.handoff import HandoffState

S = HandoffState


def pair(channel: str, **options: Any) -> tuple[TestWorker, TestWorker]:
    hub = LocalHub() if channel in ("local", "auto") else None
    options = {"channel": channel, "hub": hub} | options
    return prefill_worker(**options), decode_worker(**options)


@pytest.mark.parametrize("channel", CHANNELS)
async def test_tokens_are_those_of_one_engine_with_prefix_hits_on_either_side(
    channel: str, seeded: random.Random
) -> None:
    prefill, decode = pair(channel)
    shared = random_prompt(seeded, 40, 40)
    prompts = [(*shared, *random_prompt(seeded, 1, 30)) for _ in range(3)] * 2
    async with running(prefill, decode), session(decode) as router:
        for prompt in prompts:
            _, answer = await router.start(prompt, greedy(9), [prefill])
            await answer.end()
            assert answer.token_ids == expected_tokens(HashModel(), prompt, 9)
        await decode.clean()
        await prefill.clean()
        for worker in (prefill, decode):
            counters = await worker.context.port.call(lambda engine: engine.counters)
            hits = counters.state_hit_tokens, counters.transfer_hit_tokens
            assert any(hits), "the second of two equal prompts finds something"
    assert decode.been_in(S.ACTIVE) == len(prompts)
    assert not decode.been_in(S.QUARANTINED)


@pytest.mark.parametrize("channel", CHANNELS)
async def test_many_at_once_share_the_channel(channel: str, seeded: random.Random) -> None:
    prefill, decode = pair(channel)
    prompts = [random_prompt(seeded, 1, 70) for _ in range(12)]
    async with running(prefill, decode), session(decode) as router:
        started = [await router.start(p, greedy(9), [prefill]) for p in prompts]
        for prompt, (_, answer) in zip(prompts, started, strict=True):
            await answer.end()
            assert answer.token_ids == expected_tokens(HashModel(), prompt, 9)
        await decode.clean()
        await prefill.clean()


async def test_auto_takes_the_best_that_both_have(seeded: random.Random) -> None:
    (prefill, decode), alone = pair("auto"), decode_worker("d1", channel="auto")
    grpc_only = decode_worker("d2", channel="grpc")
    async with running(prefill, decode, alone, grpc_only):
        for rank, wanted in ((decode, "local"), (alone, "nixl"), (grpc_only, "grpc")):
            async with session(rank) as router:
                _, answer = await router.start(random_prompt(seeded), greedy(2), [prefill])
                assert (await answer.end()).reason == common_pb2.LENGTH
                (link,) = rank.service._links.values()
                assert link.channel.startswith(f"{wanted}: ")


async def test_ends_without_a_channel_in_common_say_what_each_has(seeded: random.Random) -> None:
    prefill, decode = prefill_worker(channel="nixl"), decode_worker(channel="grpc")
    async with running(prefill, decode), session(decode) as router:
        _, answer = await router.start(random_prompt(seeded), greedy(2), [prefill])
        error = (await answer.end()).error
        assert error.code == common_pb2.INCOMPATIBLE
        assert (error.expected, error.actual) == ("nixl", "grpc")
        assert "--channel" in error.message
        await decode.clean()
        await prefill.clean()


@dataclass
class Writing:
    """A request whose ticket is granted, over NIXL; its prefill stands at the gate."""

    prefill: TestWorker
    spare: TestWorker
    decode: TestWorker
    router: RouterClient
    proxy: Proxy
    prompt: tuple[int, ...]
    request_id: str
    answer: Answer

    async def quarantined(self) -> int:
        """Slots that nobody may have."""
        status = await self.decode.context.port.call(Engine.status)
        return status.slots[Owner.QUARANTINE]

    async def clean(self) -> None:
        self.prefill.model.gate.open()
        for worker in (self.decode, self.spare, self.prefill):
            await worker.clean()


@asynccontextmanager
async def writing(rng: random.Random, state: str, lease_ms: int = 30_000) -> AsyncIterator[Writing]:
    options: dict[str, Any] = {"lease_ms": lease_ms, "channel": "nixl"}
    prefill, spare = prefill_worker(**options), prefill_worker("p1", **options)
    decode = decode_worker(**options)
    prompt = random_prompt(rng, 40, 60)
    async with running(prefill, spare, decode), session(decode, lease_ms / 1000) as router:
        async with proxied(prefill.identity) as (proxy, seen):
            prefill.model.gate.allow(1 if state == "writing" else 0)
            peers = [seen, spare.identity]
            request_id, answer = await router.start(prompt, greedy(6), peers)
            await decode.reached(S(state))
            yield Writing(prefill, spare, decode, router, proxy, prompt, request_id, answer)


@pytest.mark.parametrize("state", ["reserved", "writing"])
async def test_a_cancelled_tickets_memory_waits_for_its_writers_drain(
    state: str, seeded: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    drained, may_drain = NixlWriteOperation.drained, asyncio.Event()

    async def drain_late(self: NixlWriteOperation) -> None:
        await may_drain.wait()
        await drained(self)

    monkeypatch.setattr(NixlWriteOperation, "drained", drain_late)
    async with writing(seeded, state) as case:
        await case.router.cancel(case.request_id)
        assert (await case.answer.end()).reason == common_pb2.ABORT
        await case.decode.reached(S.QUARANTINED)
        await case.prefill.reached(S.CANCELLED)
        assert await case.quarantined() == 1
        findings = await case.decode.context.port.call(Engine.audit)
        assert not findings, "quarantine is an owner"
        may_drain.set()
        await case.decode.reached(S.CANCELLED)
        assert await case.quarantined() == 0
        await case.clean()


@pytest.mark.parametrize("state", ["reserved", "writing"])
async def test_a_cut_stream_proves_nothing_and_the_next_one_asks(
    state: str, seeded: random.Random
) -> None:
    async with writing(seeded, state) as case:
        case.proxy.cut()
        await case.answer.end()
        assert case.answer.token_ids == expected_tokens(HashModel(), case.prompt, 6)
        assert case.decode.been_in(S.QUARANTINED) == 1
        await case.decode.reached(S.EXPIRED)
        await case.clean()


async def test_memory_stays_in_quarantine_while_a_silent_writer_may_live(
    seeded: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one with whom it shares a machine may write until it has died, or says that it does not:
    here it cannot be asked."""
    monkeypatch.setattr("baton.decode.quarantine.ASK_S", 1000.0)
    async with writing(seeded, "writing", lease_ms=1000) as case:
        case.proxy.freeze()
        await case.answer.end()
        assert case.answer.token_ids == expected_tokens(HashModel(), case.prompt, 6)
        assert await case.quarantined() == 1
        assert not case.decode.been_in(S.EXPIRED)
        monkeypatch.setattr("baton.decode.quarantine.has_died", lambda ours, theirs: True)
        await case.decode.reached(S.EXPIRED)
        assert await case.quarantined() == 0
        case.proxy.thaw()
        await case.clean()


async def test_the_teardown_is_proof_for_a_writer_that_shares_no_memory(
    seeded: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = "baton.decode.prefill_link.may_write_without_us"
    monkeypatch.setattr(away, lambda ours, theirs: False)
    async with writing(seeded, "writing", lease_ms=1000) as case:
        case.proxy.freeze()
        await case.decode.reached(S.EXPIRED)
        assert await case.quarantined() == 0
        await case.answer.end()
        assert case.answer.token_ids == expected_tokens(HashModel(), case.prompt, 6)
        case.proxy.thaw()
        await case.clean()


async def test_a_rank_looks_for_bytes_no_longer_than_they_come(seeded: random.Random) -> None:
    prefill, decode = pair("nixl")
    async with running(prefill, decode), session(decode) as router:
        prompts = [random_prompt(seeded, 20, 70) for _ in range(4)]
        started = [await router.start(prompt, greedy(9), [prefill]) for prompt in prompts]
        await asyncio.gather(*(answer.end() for _, answer in started))
        name, cancelled = await router.start(random_prompt(seeded, 20, 70), greedy(99), [prefill])
        await router.cancel(name)
        await cancelled.end()
        await decode.clean()
        link = decode.service.link_to(prefill.identity)
        await until(lambda: not link._receiver._receivers["nixl"]._moving)


@pytest.mark.parametrize("channel", ["auto", "nixl"])
async def test_nobody_writes_by_himself_whose_end_could_not_be_proved(
    channel: str, seeded: random.Random
) -> None:
    prefill, decode = pair(channel, hub=None)
    async with running(prefill, decode), session(decode) as router:
        process = prefill.context.hello.process
        process.pid_namespace, process.maps_namespaces = "pid:[1]", True
        prompt = random_prompt(seeded)
        _, answer = await router.start(prompt, greedy(3), [prefill])
        finished = await answer.end()
        if channel == "auto":
            assert answer.token_ids == expected_tokens(HashModel(), prompt, 3)
            for worker in (prefill, decode):
                (chosen,) = worker.service.channels().values()
                assert chosen.startswith("grpc: nixl: ") and "share a pid namespace" in chosen
        else:
            assert "share a pid namespace" in finished.error.message
        await decode.clean()
        await prefill.clean()
    assert not decode.been_in(S.QUARANTINED)


async def test_a_lost_nixl_connection_is_made_anew(seeded: random.Random) -> None:
    prefill, decode = pair("nixl")
    async with running(prefill, decode), session(decode) as router:
        prompt = random_prompt(seeded)
        for _ in range(2):
            async with asyncio.timeout(DEADLINE_S):
                while True:
                    _, answer = await router.start(prompt, greedy(3), [prefill])
                    if (await answer.end()).reason == common_pb2.LENGTH:
                        break
            assert answer.token_ids == expected_tokens(HashModel(), prompt, 3)
            (peer,) = prefill.service._peers
            connection = await peer.peer_connection.sender()
            connection.sever(ChannelError("a test"))
            await connection.lost()
        await decode.clean()
        await prefill.clean()


@pytest.mark.parametrize("channel", CHANNELS)
async def test_a_rank_joins_a_prefill_worker_that_it_hears_of_before_a_request_names_it(
    channel: str, seeded: random.Random
) -> None:
    prefill, decode = pair(channel)
    prompt = random_prompt(seeded, 20, 30)
    async with running(prefill, decode), session(decode) as router:
        prefills = worker_pb2.Prefills(workers=[prefill.identity])
        await router.write(worker_pb2.RouterMessage(prefills=prefills))
        await until(lambda: decode.service.channels().get("p0"))
        assert decode.service.channels()["p0"].startswith(channel)
        link = decode.service.link_to(prefill.identity)
        _, answer = await router.start(prompt, greedy(5), [prefill])
        await answer.end()
        assert answer.token_ids == expected_tokens(HashModel(), prompt, 5)
        assert decode.service.link_to(prefill.identity) is link, "the request came by that one"
