"""Ranks that join, die and come back while a cluster is full: what waits at a full one moves."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from deploy.several_routers import Load
from deploy.test_scaling import Heard
from e2e.clients import assert_same_where_it_went_on, prompts_of
from kit.polling import until_asked
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


def is_later(cluster: Cluster, rank: str, old: int) -> bool:
    return incarnation(cluster, rank) > old


def incarnation(cluster: Cluster, rank: str) -> int:
    """Return that of the rank that can be given requests; 0: there is none."""
    workers = cluster.router.server_info()["workers"]
    return max(
        (w["incarnation"] for w in workers if w["worker_id"] == rank and w["ready"]), default=0
    )


def returns(cluster: Cluster) -> float:
    return total([cluster.router.metrics()], "baton_router_returns_total")


async def join(cluster: Cluster) -> float:
    """Take decode-1 out until decode-0 is full, then back; return the seconds until both share."""
    drain, undrain = cluster.rolling.drain, cluster.rolling.undrain
    await asyncio.to_thread(drain, "decode-1", 0.0, Heard())
    await until_asked(lambda: placed(cluster).get("decode-0", 0) > PLACES)
    await asyncio.to_thread(undrain, "decode-1", Heard())
    joined = time.monotonic()
    await until_asked(lambda: 0 < max(placed(cluster).values()) <= PLACES)
    return time.monotonic() - joined


@dataclass(frozen=True)
class End:
    """The line that a rank writes when it has done with an attempt at a request."""

    pid: int
    request: str
    attempt: int
    reason: str


def ends(cluster: Cluster, since: float) -> list[End]:
    """Return the lines of all ranks since a Unix time, killed ones too."""
    found = []
    for path in cluster.logs.glob("worker-*.err"):
        pid = int(path.stem.rpartition("-")[2])
        for line in path.read_text(errors="replace").splitlines():
            if "answer ended here" in line:
                told = json.loads(line)
                if told["time"] >= since:
                    found.append(End(pid, told["request_id"], told["attempt"], told["reason"]))
    return found


def assert_run_once(found: Sequence[End], killed: Collection[int], answers: int) -> None:
    """Check that each attempt ended once, and that one rank alone wrote each answer's end. A killed
    rank may have written one whose last message did not leave it any more.
    """
    attempts = Counter((end.request, end.attempt) for end in found)
    assert max(attempts.values()) == 1, attempts.most_common(3)
    whole = [end for end in found if end.reason == "length"]
    assert len({end.request for end in whole}) == answers, "one request for each answer"
    living = Counter(end.request for end in whole if end.pid not in killed)
    assert max(living.values()) == 1, living.most_common(3)
    last: dict[str, int] = {}
    for end in found:
        last[end.request] = max(end.attempt, last.get(end.request, 0))
    assert all(end.attempt == last[end.request] for end in whole if end.pid not in killed)


@pytest.mark.parametrize("kills", [1, pytest.param(12, marks=pytest.mark.chaos)])
async def test_a_full_rank_is_relieved_and_nothing_is_lost_or_run_twice_when_ranks_are_killed(
    cluster: Cluster, engine: Engine, oracle: Oracle, model: Path, rng: random.Random, kills: int
) -> None:
    """Each kill follows the return of a rank by less than the time in which it is given what waits
    at the other: recalls are under way.
    """
    prompts = prompts_of(rng, [30, 40, 50, 60])
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    expected = {
        tuple(prompt): list(output.token_ids)
        for prompt, output in zip(prompts, engine.generate(prompts, params), strict=True)
    }
    began, killed = time.time(), set[int]()
    load, before = Load(cluster, prompts, TOKENS), returns(cluster)
    load.start(STREAMS)
    async with asyncio.timeout(DEADLINE_S):
        while returns(cluster) == before:  # now and then enough answers end in the same moment
            print(f"relieved {await join(cluster):.2f} s after the other rank was ready")
    for _ in range(kills):
        rank = rng.choice(("decode-0", "decode-1"))
        reborn = partial(is_later, cluster, rank, incarnation(cluster, rank))
        killed.add(cluster.pid(rank))
        cluster.kill(rank)
        await until_asked(reborn)
        await asyncio.sleep(rng.uniform(0.0, 0.3))  # at any time
    await load.stop()
    asked, found = map(list, zip(*load.answers, strict=True))
    wanted = [expected[tuple(prompt)] for prompt in asked]
    assert_same_where_it_went_on(oracle, model, asked, found, wanted)
    written = ends(cluster, began)
    assert_run_once(written, killed, len(found))
    returned, counted = sum(end.reason == "returned" for end in written), returns(cluster) - before
    print(f"{len(found)} answers, {counted:g} given back, {len(killed)} ranks killed")
    assert returned >= counted > 0, "a killed rank may not have said so any more"
