"""Attacks on workers, over real gRPC: each is refused, names nothing, and changes no answer."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import pytest
from certificates import CLUSTER, credentials_of
from engine.engines import greedy, random_prompt
from engine.hash_model import HashModel, expected_tokens
from grpc import aio
from intruders import every_unproven_call, status_by_role
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

from baton.proto import common_pb2, handoff_pb2, handoff_pb2_grpc, worker_pb2, worker_pb2_grpc
from baton.proto.version import PROTOCOL_MAJOR
from baton.rpc.access import CALLERS
from baton.rpc.channel_options import OPTIONS

SERVED = sorted(m for m in CALLERS if "Registry" not in m and "health" not in m)


@dataclass
class Pair:
    """A prefill worker, a rank, and the router's session with it."""

    prefill: TestWorker
    decode: TestWorker
    router: RouterClient

    async def serves(self, rng: random.Random) -> None:
        """Answer one request as if nothing had happened."""
        prompt = random_prompt(rng, 20, 60)
        _, answer = await self.router.start(prompt, greedy(5), [self.prefill])
        await answer.end()
        assert answer.token_ids == expected_tokens(HashModel(), prompt, 5)

    def names(self) -> list[str]:
        """Return what no refusal may say."""
        hello = self.prefill.context.hello
        return ["d0", "p0", CLUSTER, *hello.fingerprint.values()]


@asynccontextmanager
async def pair() -> AsyncIterator[Pair]:
    prefill, decode = prefill_worker(), decode_worker()
    async with running(prefill, decode), session(decode) as router:
        yield Pair(prefill, decode, router)
        await prefill.clean()
        await decode.clean()


def says_nothing(details: str, both: Pair) -> bool:
    said = details.replace(both.prefill.started.address, "").replace(
        both.decode.started.address, ""
    )  # where the caller connected to
    return not any(len(name) > 1 and name in said for name in both.names())


async def test_no_rpc_of_a_worker_opens_to_those_who_prove_nothing(seeded: random.Random) -> None:
    async with pair() as both:
        for worker, role in ((both.prefill, "prefill"), (both.decode, "decode")):
            dns_name = f"{worker.context.worker_id}.{role}.{CLUSTER}.baton"
            address = worker.started.address
            async for what, status, details in every_unproven_call(address, dns_name, SERVED):
                assert status is grpc.StatusCode.UNAVAILABLE, what
                assert says_nothing(details, both), details
        await both.serves(seeded)


async def test_each_role_opens_only_what_the_table_gives_it(seeded: random.Random) -> None:
    """Roles that may call send nonsense here, which any end but a refusal is right for."""
    streams = {"/baton.v1.StateChannel/Write"}  # would wait for the end of the request
    async with pair() as both:
        for worker, role in ((both.prefill, "prefill"), (both.decode, "decode")):
            dns_name = f"{worker.context.worker_id}.{role}.{CLUSTER}.baton"
            methods = [m for m in SERVED if m not in streams]
            found = status_by_role(worker.started.address, dns_name, methods)
            async for caller, method, status, details in found:
                refused = status is grpc.StatusCode.PERMISSION_DENIED
                if caller not in CALLERS[method]:
                    here = status is grpc.StatusCode.UNIMPLEMENTED  # of the other role
                    assert refused or here, (caller, method, status)
                    assert says_nothing(details, both), details
        await both.serves(seeded)


def hello_of(worker: TestWorker, **claimed: object) -> common_pb2.Hello:
    """Return a Hello that fits `worker`, its fingerprint included, of whoever is claimed."""
    hello = common_pb2.Hello()
    hello.CopyFrom(worker.context.hello)
    for name, value in claimed.items():
        setattr(hello.worker, name, value)
    return hello


@pytest.mark.parametrize(
    ("name", "claimed"),
    [
        ("d1", {"worker_id": "d0", "role": common_pb2.DECODE}),
        ("d0", {"worker_id": "d0", "role": common_pb2.PREFILL}),
        ("d0", {"worker_id": "", "role": common_pb2.DECODE}),
    ],
)
async def test_a_rank_that_calls_itself_another_gets_no_hand_off(
    seeded: random.Random, name: str, claimed: dict[str, object]
) -> None:
    async with pair() as both:
        intruder = credentials_of("decode", name)
        async with intruder.dial_worker(both.prefill.identity, OPTIONS) as channel:
            call = handoff_pb2_grpc.HandoffStub(channel).Control()
            message = handoff_pb2.DecodeMessage(hello=hello_of(both.prefill, **claimed))
            await call.write(message)
            async with asyncio.timeout(DEADLINE_S):
                with pytest.raises(aio.AioRpcError) as refused:
                    await call.read()
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert says_nothing(str(refused.value.details()), both)
        await both.serves(seeded)


@pytest.mark.parametrize("method", ["Fetch", "Lend"])
@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_memory_is_shown_to_nobody_who_calls_himself_another(
    seeded: random.Random, method: str, role: str
) -> None:
    """The answer of Lend would be a NIXL agent's metadata: all that it takes to read and write."""
    prompt = random_prompt(seeded, 40, 60)
    async with pair() as both:
        _, answer = await both.router.start(prompt, greedy(2), [both.prefill])
        await answer.end()
        claimed = "d0" if role == "prefill" else "p0"
        hello = hello_of(both.prefill, worker_id=claimed, role=common_pb2.DECODE)
        wanted = handoff_pb2.FetchPrefix(hello=hello, token_ids=prompt[:32], channel="nixl")
        intruder = credentials_of(role, "p9" if role == "prefill" else "d9")
        async with intruder.dial_worker(both.prefill.identity, OPTIONS) as channel:
            stub = handoff_pb2_grpc.PrefixesStub(channel)
            sent = wanted if method == "Fetch" else iter([wanted])
            call = getattr(stub, method)(sent, timeout=DEADLINE_S)
            assert await call.code() is grpc.StatusCode.PERMISSION_DENIED
            assert says_nothing(await call.details(), both)
        await both.serves(seeded)


async def test_a_router_that_calls_itself_another_gets_no_session(seeded: random.Random) -> None:
    async with pair() as both:
        intruder = credentials_of("router", "router-1")
        async with intruder.dial_worker(both.decode.identity, OPTIONS) as channel:
            call = worker_pb2_grpc.RankStub(channel).Session()
            hello = common_pb2.Hello(protocol_major=PROTOCOL_MAJOR, router_id="router-0/x")
            await call.write(worker_pb2.RouterMessage(hello=hello))
            async with asyncio.timeout(DEADLINE_S):
                with pytest.raises(aio.AioRpcError) as refused:
                    await call.read()
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert says_nothing(str(refused.value.details()), both)
        await both.serves(seeded)


class Listening(handoff_pb2_grpc.HandoffServicer):
    """A false prefill worker: it would read whatever a rank sends it."""

    def __init__(self) -> None:
        self.heard: list[handoff_pb2.DecodeMessage] = []

    async def Control(
        self, messages: AsyncIterator[handoff_pb2.DecodeMessage], context: aio.ServicerContext
    ) -> None:
        async for message in messages:
            self.heard.append(message)


async def answered(both: Pair, prompt: tuple[int, ...], prefills: list[object]) -> Answer:
    """Ask again, as a router does, while a full machine takes longer than two seconds to connect to
    the true worker, `rpc/channel_options.py`."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            _, answer = await both.router.start(prompt, greedy(5), prefills)  # type: ignore[arg-type]
            end = await answer.end()
            if not end.HasField("error"):
                return answer
            assert end.error.retryable and "handshaker shutdown" in end.error.message, end.error


@pytest.mark.parametrize(
    ("role", "name", "signed_by"),
    [("prefill", "p0", "strangers"), ("prefill", "p1", "ours"), ("decode", "p0", "ours")],
)
async def test_a_rank_tells_a_false_prefill_worker_nothing(
    seeded: random.Random, role: str, name: str, signed_by: str
) -> None:
    false = Listening()
    server = aio.server()
    handoff_pb2_grpc.add_HandoffServicer_to_server(false, server)
    credentials = credentials_of(role, name, signed_by)
    port = server.add_secure_port("127.0.0.1:0", credentials.server())
    await server.start()
    async with pair() as both:
        seen = common_pb2.WorkerIdentity()
        seen.CopyFrom(both.prefill.identity)
        seen.address = f"127.0.0.1:{port}"
        prompt = random_prompt(seeded, 20, 60)
        _, alone = await both.router.start(prompt, greedy(5), [seen])  # type: ignore[list-item]
        assert (await alone.end()).error.code == common_pb2.UNAVAILABLE
        answer = await answered(both, prompt, [seen, both.prefill])
        assert answer.token_ids == expected_tokens(HashModel(), prompt, 5)
        assert not false.heard
    await server.stop(None)
