"""Tests of the return of state over NIXL: the reader copies a prefix from the lender's memory, and
accepts it only if it stayed locked during the whole read."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from decode.test_state_returner import (
    GRID,
    assert_right,
    decode,
    fetches,
    first_turn,
    moved,
    prefill,
)
from engine.engines import greedy
from engine.hash_model import HashModel, expected_tokens
from kit.polling import until
from worker.cluster import DEADLINE_S, TestWorker, running, session

from baton.engine.cache.salted_prefix import SaltedPrefix
from baton.engine.engine import Engine
from baton.proto import common_pb2
from baton.transfer.channels.frames import HEADER_BYTES
from baton.transfer.channels.grpc.write_operation import GrpcWriteOperation
from baton.transfer.channels.nixl.channel import NixlChannel
from baton.transfer.channels.nixl.reader import NixlReader
from baton.transfer.channels.poller import Work
from baton.transfer.errors import ChannelError
from baton.transfer.memory.segments import Kind
from baton.worker import prefix_reader
from baton.worker.prefix_fetcher import Outcome


def nixl(make: Callable[..., TestWorker], name: str, **more: Any) -> TestWorker:
    return make(name, channel="nixl", **more)


@pytest.fixture
def no_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: Any) -> None:
        raise AssertionError("written by gRPC")

    monkeypatch.setattr(GrpcWriteOperation, "write", never)


@pytest.mark.usefixtures("no_grpc")
async def test_a_second_turn_hits_what_was_read(seeded: random.Random) -> None:
    """The live state and the snapshot come by NIXL both; what the prefill has of the KV stays."""
    p, d = nixl(prefill, "p0"), nixl(decode, "d0")
    async with running(p, d), session(d) as router:
        for turn in (1, 2):  # the second by the same connection
            second, kept = await first_turn(router, p, seeded)
            _, answer = await router.start(second, greedy(9), [p])
            await assert_right(answer, second, kept)
            assert fetches(p, Outcome.FETCHED) == turn
            size = turn * p.engine.plan.slot_layout.state_bytes
            assert moved(p, Kind.SNAPSHOT, "received") == moved(d, Kind.SNAPSHOT, "sent") == size
            assert moved(p, Kind.KV, "received") == kept_kv(p, d)
        for worker in (p, d):
            await worker.clean()
        assert len(p.service._prefixes.fetcher._reader._readers) == 1


def kept_kv(p: TestWorker, d: TestWorker) -> int:
    """Return the KV bytes that the lender sent, and assert that they are not all of the prompt's,
    which the prefill has."""
    sent = moved(d, Kind.KV, "sent")
    assert 0 < sent < p.engine.plan.page_layout.token_bytes * 200
    return sent


async def test_one_that_has_no_nixl_is_fetched_from_by_grpc(seeded: random.Random) -> None:
    p, d = prefill("p0", channel="auto"), decode("d0", channel="grpc")
    async with running(p, d), session(d) as router:
        second, kept = await first_turn(router, p, seeded)
        _, answer = await router.start(second, greedy(9), [p])
        await assert_right(answer, second, kept)
        assert fetches(p, Outcome.FETCHED) == 1
        for worker in (p, d):
            await worker.clean()


async def test_one_that_cannot_be_reached_is_fetched_from_by_grpc(
    seeded: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is tried again after a while."""

    async def apart(*_: Any) -> None:
        raise ChannelError("nixl cannot reach it")

    p, d = nixl(prefill, "p0"), nixl(decode, "d0")
    async with running(p, d), session(d) as router:
        prompts = [await first_turn(router, p, seeded) for _ in range(3)]
        monkeypatch.setattr(NixlChannel, "connect_reader", apart)
        for turn, (second, kept) in enumerate(prompts):
            if turn == 2:
                monkeypatch.undo()
                monkeypatch.setattr(prefix_reader, "RETRY_S", 0.0)
            _, answer = await router.start(second, greedy(9), [p])
            await assert_right(answer, second, kept)
        assert fetches(p, Outcome.FETCHED) == 3
        headers = moved(p, Kind.SNAPSHOT, "received") - 3 * p.engine.plan.slot_layout.state_bytes
        assert headers == 2 * HEADER_BYTES, "by gRPC twice"
        for worker in (p, d):
            await worker.clean()


async def test_a_lender_that_was_started_again_is_reached_again(seeded: random.Random) -> None:
    p, first, again = (nixl(make, name) for make, name in
                       ((prefill, "p0"), (decode, "d0"), (decode, "d0")))  # fmt: skip
    async with running(p):
        for d in (first, again):
            async with running(d), session(d) as router:
                second, kept = await first_turn(router, p, seeded)
                _, answer = await router.start(second, greedy(9), [p])
                await assert_right(answer, second, kept)
        assert fetches(p, Outcome.FETCHED) == 2
        (known,) = p.service._prefixes.fetcher._reader._readers.values()
        assert known.incarnation == again.identity.incarnation
        await p.clean()


async def _evicted(d: TestWorker, _: pytest.MonkeyPatch) -> None:
    assert await d.context.port.call(Engine.flush_cache)


async def _dead(d: TestWorker, _: pytest.MonkeyPatch) -> None:
    await d.stop()


async def _silent(d: TestWorker, _: pytest.MonkeyPatch) -> None:
    async def hang(*_: Any) -> None:
        await asyncio.Event().wait()

    d.service._prefixes._holder._lend = hang


async def _corrupting(_: TestWorker, patch: pytest.MonkeyPatch) -> None:
    """A byte of what was read is another one."""
    read = NixlReader.read

    async def spoilt(self: NixlReader, segments: Any, into: Any, source: Any) -> None:
        await read(self, segments, into, source)
        self._context.memory.write(segments[-1], into, bytes_of(self, segments[-1], into))

    def bytes_of(reader: NixlReader, segment: Any, into: Any) -> memoryview:
        found = bytearray(b"".join(reader._context.memory.read(segment, into)))
        found[-1] ^= 1
        return memoryview(found)

    patch.setattr(NixlReader, "read", spoilt)


@pytest.mark.parametrize(
    ("trouble", "outcome"),
    [
        (_evicted, Outcome.ABSENT),
        (_dead, Outcome.FAILED),
        (_silent, Outcome.FAILED),
        (_corrupting, Outcome.FAILED),
    ],
)
async def test_what_cannot_be_read_is_computed(
    seeded: random.Random,
    monkeypatch: pytest.MonkeyPatch,
    trouble: Callable[[TestWorker, pytest.MonkeyPatch], Any],
    outcome: Outcome,
) -> None:
    p, d, other = nixl(prefill, "p0"), nixl(decode, "d0"), nixl(decode, "d1")
    async with running(p, d, other), session(other) as router:
        if trouble is _silent:
            p.service._prefixes.fetcher._deadline_s = 0.5
        async with session(d) as first:
            second, kept = await first_turn(first, p, seeded)
            await d.clean()
        await p.clean()
        await trouble(d, monkeypatch)
        at = common_pb2.StateAt(worker=d.identity, tokens=kept)
        _, answer = await router.start(second, greedy(9), [p], state_at=at)
        finished = await answer.end()
        assert answer.token_ids == expected_tokens(HashModel(), second, 9)
        assert 0 < finished.usage.cached_tokens < kept, "its own prompt's snapshot, no more"
        assert fetches(p, outcome) == 1
        await p.clean()
        await other.clean()
        if trouble is not _dead:
            await d.clean()


async def test_what_was_not_lent_to_the_end_is_not_believed(
    seeded: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that is held up past the lease may have read what is another's by then."""
    p, d = nixl(prefill, "p0"), nixl(decode, "d0")
    read = NixlReader.read

    async def held_up(self: NixlReader, *args: Any) -> None:
        await read(self, *args)
        await until(lambda: not lent(d))

    async with running(p, d), session(d) as router:
        second, kept = await first_turn(router, p, seeded)
        _, answer = await router.start(second, greedy(9), [p])
        await assert_right(answer, second, kept)  # they are connected: that takes its time
        second, kept = await first_turn(router, p, seeded)
        d.service._prefixes._holder._loan_s = 0.3
        monkeypatch.setattr(NixlReader, "read", held_up)
        _, answer = await router.start(second, greedy(9), [p])
        finished = await answer.end()
        assert answer.token_ids == expected_tokens(HashModel(), second, 9)
        assert finished.usage.cached_tokens < kept and not finished.usage.cached_tokens % GRID
        assert fetches(p, Outcome.FAILED) == 1
        for worker in (p, d):
            await worker.clean()


def lent(worker: TestWorker) -> bool:
    return worker.service._prefixes._holder._lenders["nixl"]._lent > 0


async def test_a_fetch_that_is_given_up_has_ended_its_reads(
    seeded: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its memory is anyone else's; and the next one connects anew."""
    p, d = nixl(prefill, "p0"), nixl(decode, "d0")
    begun, closed = asyncio.Event(), []
    read, close = NixlReader.read, NixlReader.close

    async def noted_read(self: NixlReader, *args: Any) -> None:
        begun.set()
        await read(self, *args)

    async def noted_close(self: NixlReader) -> None:
        await close(self)
        closed.append(await p.context.port.call(lambda engine: len(engine.reservations)))

    async with running(p, d), session(d) as router:
        second, kept = await first_turn(router, p, seeded)
        await p.clean()
        with monkeypatch.context() as stuck:
            stuck.setattr(NixlReader, "poll", lambda self: Work.WAITING)
            stuck.setattr(NixlReader, "read", noted_read)
            stuck.setattr(NixlReader, "close", noted_close)
            task = p.service._prefixes.fetcher.start(d.identity, SaltedPrefix(second[:kept]))
            async with asyncio.timeout(DEADLINE_S):
                await begun.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert closed == [1], "what was reserved is so until the reads have ended"
        _, answer = await router.start(second, greedy(9), [p])
        await assert_right(answer, second, kept)
        for worker in (p, d):
            await worker.clean()
