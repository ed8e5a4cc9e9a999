"""Workers join, leave and are lost, over real gRPC."""

from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from certificates import credentials_of
from fake_workers import DEADLINE_S, FakeRank, FakeWorker, tokens_of, within
from router_neighbours import Cluster, replies_of

from baton.proto import worker_pb2_grpc
from baton.proto.common_pb2 import INCOMPATIBLE, INVALID_REQUEST, UNAVAILABLE
from baton.proto.worker_pb2 import WorkerReport
from baton.rpc.channel_options import OPTIONS


async def test_a_worker_is_told_the_lease_and_shows_up_with_what_it_reported(
    tmp_path: Path,
) -> None:
    async with Cluster(tmp_path, lease_ms=1700) as cluster, FakeRank("d0", 3) as rank:
        rank.running = 2
        reply = await rank.register(cluster.started.internal_address)
        assert reply.lease_ms == 1700 and reply.router_id.startswith("router-")
        seen = (await cluster.workers())["d0"]
        assert seen["role"] == "decode" and seen["incarnation"] == 3
        assert seen["address"] == rank.address and seen["running"] == 2
        assert seen["pages"] == {"free": 7, "live": 2}


async def test_a_worker_of_another_model_is_turned_away_and_told_both_values(
    tmp_path: Path,
) -> None:
    async with Cluster(tmp_path) as cluster, FakeRank("d0", dtype="bf16") as odd:
        await cluster.add(FakeWorker("p0", dtype="fp32"))
        reply = await odd.register(cluster.started.internal_address)
        assert reply.error.code == INCOMPATIBLE
        assert (reply.error.expected, reply.error.actual) == ("dtype=fp32", "dtype=bf16")
        assert await within(odd.replies.get()) is None  # the router ended the stream
        assert set(await cluster.workers()) == {"p0"}


async def test_a_new_incarnation_replaces_the_old_one_whose_stream_is_ended(
    tmp_path: Path,
) -> None:
    async with Cluster(tmp_path) as cluster:
        old, new = FakeRank("d0", incarnation=1), FakeRank("d0", incarnation=2)
        await cluster.add(old, new)
        turned_away = await within(old.replies.get())
        assert turned_away is not None and turned_away.error.code == UNAVAILABLE
        assert (await cluster.workers())["d0"]["incarnation"] == 2
        await cluster.add(FakeWorker("p0"))
        call = cluster.generate([11, 12])
        await within(new.starts.get())
        assert old.starts.empty()
        call.cancel()


async def test_a_stream_must_begin_with_hello(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        worker = credentials_of("decode", "d0")
        async with worker.dial_router(cluster.started.internal_address, OPTIONS) as channel:
            call = worker_pb2_grpc.RegistryStub(channel).Register(timeout=DEADLINE_S)
            await call.write(WorkerReport(leaving=True))
            assert (await call.read()).error.code == INVALID_REQUEST
            assert await call.read() is grpc.aio.EOF


async def test_a_leaving_worker_gets_nothing_new_but_ends_what_it_has(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        first, second = FakeRank("d0"), FakeRank("d1")
        await cluster.add(FakeWorker("p0"), first)
        running = cluster.generate([11, 12], max_tokens=4)
        start = await within(first.starts.get())
        await cluster.add(second)
        first.report(leaving=True)
        assert (reply := await within(first.replies.get())) is not None and reply.leaving
        assert (await cluster.workers())["d0"]["state"] == "draining"
        others = [cluster.generate([13, 14]) for _ in range(3)]
        for _ in others:
            await within(second.starts.get())
        assert first.starts.empty()
        first.send(tokens_of(start, [20, 21], last=True))
        replies = await within(replies_of(running))
        assert [i for reply in replies for i in reply.token_ids] == [20, 21]
        for call in others:
            call.cancel()


async def test_a_worker_that_returns_from_a_drain_keeps_what_it_has(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        prefill, rank = FakeWorker("p0"), FakeRank("d0")
        await cluster.add(prefill, rank)
        running = cluster.generate([11, 12], max_tokens=4)
        start = await within(rank.starts.get())
        for worker in (prefill, rank):
            worker.report(leaving=True)
            await hears(worker, "leaving")
        late = FakeRank("d1")  # it hears of no prefill worker that leaves
        await cluster.add(late)
        for worker in (prefill, rank):
            worker.report()
            await hears(worker, "returned")
        assert {each["state"] for each in (await cluster.workers()).values()} == {"ready"}
        while (announced := await within(late.introduced.get())) != ["p0"]:
            assert not announced
        rank.send(tokens_of(start, [20, 21], last=True))
        replies = await within(replies_of(running))
        assert [i for reply in replies for i in reply.token_ids] == [20, 21]
        assert rank.starts.empty() and late.starts.empty()


async def hears(worker: FakeWorker, field: str) -> None:
    """Wait for a reply of the router that has this field."""
    while not getattr(reply := await within(worker.replies.get()), field):
        assert reply is not None and not reply.HasField("error")


@pytest.mark.parametrize("go", [FakeRank.unregister, FakeRank.hang_up])
async def test_where_no_other_rank_is_requests_fail_with_the_name_and_the_reason(
    tmp_path: Path, go: Callable[[FakeRank], None]
) -> None:
    # A lease so long that only the end of a stream can tell.
    async with Cluster(tmp_path, lease_ms=3_600_000, worker_wait_s=0.0) as cluster:
        rank = FakeRank("d0")
        await cluster.add(FakeWorker("p0"), rank)
        call = cluster.generate([11, 12])
        await within(rank.starts.get())
        go(rank)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await within(call.read())
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "decode rank d0 was lost: it" in failed.value.details()


async def test_a_rank_hears_of_prefill_workers_when_it_comes_and_when_they_do(
    tmp_path: Path,
) -> None:
    async with Cluster(tmp_path) as cluster:
        early, late = FakeRank("d0"), FakeRank("d1")
        await cluster.add(early, FakeWorker("p0"))
        assert await within(early.introduced.get()) == ["p0"]
        await cluster.add(FakeWorker("p1"), late)
        assert await within(early.introduced.get()) == ["p1"]
        assert await within(late.introduced.get()) == ["p0", "p1"]
