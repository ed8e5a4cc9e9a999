"""A router among others: what it may have on a worker, and what it tells of its wants."""

import asyncio
from pathlib import Path

import httpx
from fake_workers import FakeRank, FakeWorker, tokens_of, within
from router_neighbours import Cluster

from baton.proto.worker_pb2 import Demand, Share


async def demand(worker: FakeWorker, share: int, wanted: int, held: int) -> Demand:
    """Wait until the router has read that share and says that it wants and holds so much."""
    while True:
        reply = await within(worker.replies.get())
        assert reply is not None
        told = reply.demand
        if (told.share, told.wanted, told.held) == (share, wanted, held):
            return told


async def test_a_router_has_no_more_on_a_rank_than_its_share(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        rank = FakeRank("d0")  # runs 4 at once, and is given 2 ahead
        rank.share, rank.routers = Share(number=3, units=2), ["router-0", "router-1"]
        await cluster.add(FakeWorker("p0"), rank)
        await cluster.until(lambda workers: workers["d0"]["share"] == 2)
        calls = [cluster.generate([11], max_tokens=1) for _ in range(9)]
        given = [await within(rank.starts.get()) for _ in range(2)]
        assert (await demand(rank, share=3, wanted=6, held=2)).most == 6
        assert rank.starts.empty(), "the others wait at the router"
        rank.share = Share(number=4, units=5)
        given += [await within(rank.starts.get()) for _ in range(3)]
        await demand(rank, share=4, wanted=6, held=5)
        assert rank.starts.empty()
        rank.share = None  # the other router has gone
        given.append(await within(rank.starts.get()))
        await cluster.until(lambda workers: workers["d0"]["share"] is None)
        rank.answer = lambda start: [tokens_of(start, [20], last=True)]
        for start in given:
            rank.send(tokens_of(start, [20], last=True))
        for call in calls:
            assert [list(reply.token_ids) async for reply in call if reply.token_ids] == [[20]]


async def test_prompts_wait_for_their_share_of_a_prefill_worker(tmp_path: Path) -> None:
    async with Cluster(tmp_path, prefill_here=0) as cluster:
        prefill, rank = FakeWorker("p0"), FakeRank("d0")
        prefill.settings = {"chunked_prefill_size": "100"}
        prefill.share, prefill.routers = Share(number=1, units=90), ["router-0", "router-1"]
        await cluster.add(prefill, rank)
        await cluster.until(lambda workers: workers["p0"]["share"] == 90)
        calls = [cluster.generate([11] * 60, max_tokens=1) for _ in range(3)]
        await within(rank.starts.get())
        told = await demand(prefill, share=1, wanted=182, held=60)  # 2 x 61 wait
        assert told.most == 200
        assert rank.starts.empty(), "one router always has one; a second has not its share"
        prefill.share = Share(number=2, units=150)
        await within(rank.starts.get())
        for call in calls:
            call.cancel()


async def test_prompts_go_to_the_prefill_worker_with_a_share_for_them(tmp_path: Path) -> None:
    async with Cluster(tmp_path, prefill_here=0) as cluster:
        little, much, rank = FakeWorker("p0"), FakeWorker("p1"), FakeRank("d0")
        for worker, units in ((little, 90), (much, 400)):
            worker.settings = {"chunked_prefill_size": "400"}
            worker.share, worker.routers = Share(number=1, units=units), ["router-0", "router-1"]
        await cluster.add(little, much, rank)
        await cluster.until(lambda workers: workers["p1"]["share"] == 400)
        calls = [cluster.generate([11] * 60, max_tokens=1) for _ in range(4)]
        starts = [await within(rank.starts.get()) for _ in calls]
        first = [start.prefills[0].worker_id for start in starts]
        assert first.count("p0") == 1, "it has no share for a second one, whose turn it would be"
        for call in calls:
            call.cancel()


async def test_each_worker_is_a_target_of_one_of_its_routers(tmp_path: Path) -> None:
    async with (
        Cluster(tmp_path) as cluster,
        httpx.AsyncClient(base_url=cluster.http) as http,
    ):
        mine, other = FakeWorker("p0"), FakeWorker("p1")
        mine.routers, other.routers = ["router-0", "router-1"], ["router", "router-0"]
        await cluster.add(mine, other)
        await cluster.until(lambda workers: all(w["routers"] for w in workers.values()))
        targets = (await http.get("/prometheus/targets")).json()
        named = [target["labels"].get("baton_worker") for target in targets]
        assert named == [None, "p0"]
        other.routers = ["router-0"]
        async with asyncio.timeout(60):
            while len((await http.get("/prometheus/targets")).json()) != 3:
                pass
