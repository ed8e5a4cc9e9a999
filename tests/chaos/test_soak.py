"""Thousands of requests, many of them cancelled: nothing that a worker has may grow."""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import astuple, replace

import pytest
import pytest_asyncio
from chaos.client import Reply, new_request_id
from chaos.cluster import PAIRS, RETURNING, ROLES, Ask, Cluster, plan, running_cluster
from chaos.node import Node
from chaos.node_main import Weight
from engine.engines import random_prompt

from baton.proto import common_pb2

pytestmark = pytest.mark.asyncio(loop_scope="module")

AT_ONCE = 16
CANCELLED = 0.25  # of all requests, somewhere on their way
PARTS = 10  # of a soak; each ends with everybody weighed
LAST = 3  # parts of which the fewest objects count
WARM = 3  # parts after which nothing may grow any more
# How far a worker's count may wander; a leak has one or more a request.
FDS = 3
OBJECTS = 200  # of Python's
POOL = 6  # threads of asyncio's own pool, which it makes as it needs them
RSS = 1.05  # of a warm worker's
LOOKS = 3  # at a worker whose weight is compared


PLANS = {
    "grpc": plan("grpc", lease_ms=5000, moves=False, ballast_kib=64),
    "auto": plan("auto", lease_ms=5000, moves=False, ballast_kib=64, options=RETURNING),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    async with running_cluster(PLANS[request.param], linked=False) as running:
        yield running


async def one(cluster: Cluster, rng: random.Random) -> None:
    """A request by any pair, left alone or cancelled at some point of its way."""
    ask, rank = Ask.draw(rng, 1, 150), rng.choice(("d0", "d1"))
    prefills = rng.sample(("p0", "p1"), rng.choice((1, 2)))
    reply = await cluster.begin(ask, prefills, rank)
    if rng.random() < CANCELLED:
        enough = rng.randrange(ask.tokens)
        await asyncio.sleep(rng.choice((0, 0, 0.003, 0.01)))  # cancelled at any point
        await reply.until(lambda reply: reply.over or len(reply.token_ids) >= enough)
        await (await cluster.client(rank)).cancel(ask.request_id)
    await reply.end()
    check(ask, reply)


def check(ask: Ask, reply: Reply) -> None:
    right = ask.answer
    assert reply.finished is not None, reply.lost
    assert reply.token_ids == right[: len(reply.token_ids)]
    if not reply.whole:
        assert reply.finished.error.code == common_pb2.CANCELLED, reply.finished


async def meet(cluster: Cluster, rng: random.Random) -> None:
    """Every connection that there can be is made: an answer, and what goes back of it, by each
    pair."""
    for pair in PAIRS:
        prompt = random_prompt(rng, 40, 40)  # its answer ends past the next snapshot
        await cluster.serve(Ask(new_request_id(), prompt, 16), *pair)
    await cluster.settled()


async def soak(cluster: Cluster, rng: random.Random, requests: int) -> list[dict[str, Weight]]:
    """Everybody's weight after each part."""
    await meet(cluster, rng)
    weights = []
    for part in range(PARTS):
        places = asyncio.Semaphore(AT_ONCE)

        async def placed(places: asyncio.Semaphore = places) -> None:
            async with places:
                await one(cluster, rng)

        await asyncio.gather(*(placed() for _ in range(requests // PARTS)))
        await cluster.settled()
        looks = LOOKS if part in (WARM - 1, PARTS - 1) else 1
        weights.append({name: await weighed(cluster[name], looks) for name in ROLES})
        print(weights[-1])
    return weights


async def weighed(node: Node, count: int) -> Weight:
    """The least of these looks: a report of its own, or a heartbeat, may be under way in one."""
    looks = [astuple(await node.weigh()) for _ in range(count)]
    return Weight(*map(min, zip(*looks, strict=True)))


def warm_weights(weights: list[dict[str, Weight]]) -> dict[str, Weight]:
    """Those after the last warm part, with the most files that any worker of the same role had in
    a warm part. Workers of a role have the same connections when all are made; one that could not
    be made, because the peer's agent had just been replaced, is made again in a later part.
    """
    warm = weights[:WARM]
    most = {role: 0 for role in set(ROLES.values())}
    for part in warm:
        for name, role in ROLES.items():
            most[role] = max(most[role], part[name].fds)
    return {name: replace(warm[-1][name], fds=most[role]) for name, role in ROLES.items()}


def last_weights(weights: list[dict[str, Weight]]) -> dict[str, Weight]:
    """Those after the last part, with the fewest objects of the last parts: how many wait for
    Python's collector differs by a hundred from look to look, and a leak is in all of them.
    """
    last = weights[-LAST:]
    return {
        name: replace(last[-1][name], objects=min(part[name].objects for part in last))
        for name in ROLES
    }


def assert_nothing_grew(before: dict[str, Weight], after: dict[str, Weight], requests: int) -> None:
    for name in ROLES:
        was, now = before[name], after[name]
        assert now.fds <= was.fds + FDS, name
        assert now.threads <= was.threads + POOL, name
        assert now.tasks <= was.tasks, name
        assert now.objects <= was.objects + OBJECTS + requests // 50, name
        assert now.rss <= was.rss * RSS, name


LONG = [pytest.mark.chaos, pytest.mark.timeout(3000)]


@pytest.mark.parametrize(
    ("cluster", "requests"),
    [
        ("auto", 200),
        pytest.param("auto", 10_000, marks=LONG),
        pytest.param("grpc", 3000, marks=LONG),
    ],
    indirect=["cluster"],
)
async def test_nothing_grows_however_many_requests_come_and_go(
    requests: int, cluster: Cluster
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    weights = await soak(cluster, random.Random(seed), requests)
    assert_nothing_grew(warm_weights(weights), last_weights(weights), requests)
