"""Ranks that join, die and come back while a cluster is full: what waits at a full one moves."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from deploy.several_routers import Load
from deploy.test_scaling import Heard
from e2e.clients import assert_same_where_it_went_on, prompts_of
from oracle.reference import Oracle

from baton.bench.cluster.scrape import total
from baton.core.sampling_params import SamplingParams
from baton.deploy.cluster.cluster import Cluster
from baton.engine.engine import Engine

pytestmark = pytest.mark.cluster

PLACES = 8  # of a rank, as in conftest
STREAMS = PLACES + 4  # more than one rank is given, ahead included
TOKENS = 500
DEADLINE_S = 180.0


def placed(cluster: Cluster) -> Mapping[str, int]:
    """Return the requests on each rank that can be given some."""
    workers = cluster.router.server_info()["workers"]
    return {
        w["worker_id"]: int(w["placed"]) for w in workers if w["role"] == "decode" and w["ready"]
    }


def incarnation(cluster: Cluster, rank: str) -> int:
    """Return that of the rank that can be given requests; 0: there is none."""
    workers = cluster.router.server_info()["workers"]
    return max(
        (w["incarnation"] for w in workers if w["worker_id"] == rank and w["ready"]), default=0
    )


def returns(cluster: Cluster) -> float:
    return total([cluster.router.metrics()], "baton_router_returns_total")


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await asyncio.to_thread(true):
            await asyncio.sleep(0.02)


async def join(cluster: Cluster) -> float:
    """Take decode-1 out until decode-0 is full, then back; return the seconds until both share."""
    drain, undrain = cluster.rolling.drain, cluster.rolling.undrain
    await asyncio.to_thread(drain, "decode-1", 0.0, Heard())
    await until(lambda: placed(cluster).get("decode-0", 0) > PLACES)
    await asyncio.to_thread(undrain, "decode-1", Heard())
    joined = time.monotonic()
    await until(lambda: 0 < max(placed(cluster).values()) <= PLACES)
    return time.monotonic() - joined


@pytest.mark.parametrize("kills", [1, pytest.param(12, marks=pytest.mark.chaos)])
async def test_a_full_rank_is_relieved_and_nothing_is_lost_when_ranks_are_killed(
    cluster: Cluster, engine: Engine, oracle: Oracle, model: Path, rng: random.Random, kills: int
) -> None:
    prompts = prompts_of(rng, [30, 40, 50, 60])
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    expected = {
        tuple(prompt): list(output.token_ids)
        for prompt, output in zip(prompts, engine.generate(prompts, params), strict=True)
    }
    load, before = Load(cluster, prompts, TOKENS), returns(cluster)
    load.start(STREAMS)
    async with asyncio.timeout(DEADLINE_S):
        while returns(cluster) == before:  # now and then enough answers end in the same moment
            print(f"relieved {await join(cluster):.2f} s after the other rank was ready")
    for _ in range(kills):
        rank = rng.choice(("decode-0", "decode-1"))
        old = incarnation(cluster, rank)
        cluster.kill(rank)
        await until(lambda rank=rank, old=old: incarnation(cluster, rank) > old)
        await until(lambda rank=rank: placed(cluster).get(rank, 0) > 0)
    await load.stop()
    asked, found = map(list, zip(*load.answers, strict=True))
    wanted = [expected[tuple(prompt)] for prompt in asked]
    assert_same_where_it_went_on(oracle, model, asked, found, wanted)
    print(f"{len(found)} answers, {returns(cluster) - before:g} given back")
