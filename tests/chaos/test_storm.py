"""Fault upon fault under load, on both sides at once: every answer comes whole in the end, and what
nobody wants any more is given back."""

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from chaos.case import AWAY, CLEAR, Fault
from chaos.cluster import PAIRS, RETURNING, UCX_TCP, Ask, Cluster, plan, running_cluster
from chaos.netns import unavailable
from chaos.node import DEADLINE_S
from grpc import aio

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.chaos]

PLANS = {
    "grpc": plan("grpc"),
    "nixl": plan("nixl", options=RETURNING),
    "nixl-tcp": plan("nixl", env=UCX_TCP),
}
FAULTS = 20  # of each side
AT_ONCE = 8
LONGEST = 2.0  # leases that a victim is away


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=PLANS)
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    async with running_cluster(PLANS[request.param], linked=True) as running:
        yield running


async def storm(cluster: Cluster, rng: random.Random, names: tuple[str, str]) -> None:
    """One of `names` after the other, or the same again; the other one is left alone."""
    faults = [fault for fault in AWAY if fault is not Fault.CUT or can_be_cut(cluster)]
    for _ in range(FAULTS):
        await asyncio.sleep(rng.uniform(0.0, 0.5))  # at any time
        name, fault, away_s = rng.choice(names), rng.choice(faults), rng.uniform(0.1, LONGEST)
        print(f"{fault} {name} for {away_s:.2f} leases")
        await strike(cluster, name, fault, away_s * cluster.lease_s)


async def strike(cluster: Cluster, name: str, fault: Fault, away_s: float) -> None:
    node = cluster[name]
    match fault:
        case Fault.KILL:
            await node.end()
            await cluster.start(name)
        case Fault.STOP:
            node.stop()
            await asyncio.sleep(away_s)  # the fault itself
            node.resume()
        case Fault.CUT:
            assert cluster.net is not None
            await cluster.net.cut(name)
            await asyncio.sleep(away_s)  # the fault itself
            await cluster.net.mend(name)


def can_be_cut(cluster: Cluster) -> bool:
    return unavailable() is None and not cluster.needs_no_link


async def answered(cluster: Cluster, rng: random.Random, ask: Ask) -> int:
    """Get an answer as a router does, from any worker that is there. Return the number of
    attempts."""
    came: list[int] = []
    async with asyncio.timeout(DEADLINE_S):
        for attempt in range(1, 256):
            rank, prefills = rng.choice(("d0", "d1")), rng.sample(("p0", "p1"), 2)
            try:
                reply = await cluster.begin(ask, prefills, rank, attempt=attempt, outputs=came)
            except aio.AioRpcError:  # nobody listens there now
                await asyncio.sleep(0.05)  # before the next attempt, as a router does
                continue
            await reply.end()
            came = came + reply.token_ids
            assert came == ask.answer[: len(came)], f"wrong tokens of {ask.request_id}"
            if reply.whole:
                return attempt
            if reply.finished is not None:
                error = reply.finished.error
                assert error.code in CLEAR and error.message, reply.finished
            await asyncio.sleep(0.05)  # before the next attempt, as a router does
    raise AssertionError(f"{ask.request_id} was never answered")


async def load(cluster: Cluster, rng: random.Random, over: asyncio.Event) -> list[int]:
    """Request after request; the attempts of each."""
    attempts = []
    while not over.is_set():
        attempts.append(await answered(cluster, rng, Ask.draw(rng)))
    return attempts


@pytest.mark.parametrize("seed", [0])
async def test_a_storm_loses_no_answer_and_leaves_nothing(seed: int, cluster: Cluster) -> None:
    rng, over = random.Random(seed), asyncio.Event()
    async with asyncio.TaskGroup() as clients:
        loads = [clients.create_task(load(cluster, rng, over)) for _ in range(AT_ONCE)]
        async with asyncio.TaskGroup() as storms:
            for names in (("p0", "p1"), ("d0", "d1")):
                storms.create_task(storm(cluster, rng, names))
        over.set()
    attempts = [each for one in loads for each in one.result()]
    again = sum(1 for each in attempts if each > 1)
    print(f"{len(attempts)} answers, {again} by more than one attempt, {max(attempts)} at the most")
    assert again
    await cluster.settled()
    for pair in PAIRS:
        await cluster.serves_again(rng, *pair)
    await cluster.settled()
