"""The balance of placements over ranks: a real router, and ranks that the test plays."""

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest
from fake_workers import FakeRank, FakeWorker, tokens_of, within
from router_neighbours import Cluster, random_ids

from baton.proto.worker_pb2 import StartRequest

RANKS, AT_ONCE, REQUESTS = 4, 12, 80


@pytest.mark.parametrize("policy", ["round_robin", "least_load"])
async def test_ranks_share_requests_that_take_unequally_long(tmp_path: Path, policy: str) -> None:
    """round_robin gives each rank the same number of requests; least_load keeps the number that
    each has at a time the same, whichever requests end first."""
    rng = random.Random(random.randrange(1 << 32))
    ranks = [FakeRank(f"d{number}") for number in range(RANKS)]
    for rank in ranks:
        rank.max_running = AT_ONCE  # one that is full would be passed over
    placed: Counter[str] = Counter()
    running: list[tuple[FakeRank, StartRequest]] = []
    async with Cluster(tmp_path, policy=policy, prefill_here=0) as cluster:
        await cluster.add(FakeWorker("p0"), *ranks)
        calls: dict[int, asyncio.Task[None]] = {}
        for _ in range(REQUESTS):
            if len(running) == AT_ONCE:  # a random one ends before the next is sent
                rank, start = running.pop(rng.randrange(AT_ONCE))
                rank.send(tokens_of(start, [20], last=True))
                await within(calls.pop(start.prompt_ids[0]))
            prompt = random_ids(rng, 5)
            while prompt[0] in calls:
                prompt = random_ids(rng, 5)
            calls[prompt[0]] = asyncio.create_task(_read(cluster, prompt))
            rank, start = await within(_started(ranks))
            placed[rank.worker_id] += 1
            running.append((rank, start))
            busy = Counter(each.worker_id for each, _ in running)
            if policy == "least_load":
                least = min(busy[each.worker_id] for each in ranks)
                assert max(busy.values()) - least <= 1, busy
        for rank, start in running:
            rank.send(tokens_of(start, [20], last=True))
        await within(asyncio.gather(*calls.values()))
    assert sum(placed.values()) == REQUESTS
    counts = [placed[each.worker_id] for each in ranks]
    if policy == "round_robin":
        assert max(counts) - min(counts) <= 1, counts
    assert max(counts) <= 4 * min(counts), counts


async def _read(cluster: Cluster, prompt: list[int]) -> None:
    call = cluster.generate(prompt, max_tokens=1)
    assert [id for reply in [r async for r in call] for id in reply.token_ids] == [20]


async def _started(ranks: list[FakeRank]) -> tuple[FakeRank, StartRequest]:
    """Return the next request, and the rank that it was started on."""
    waits = {asyncio.create_task(rank.starts.get()): rank for rank in ranks}
    done, rest = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    (task,) = done
    return waits[task], task.result()
