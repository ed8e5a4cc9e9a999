"""Memory that a stopped writer may still write into is kept from everybody until there is proof.

Over NIXL by shared memory, where tearing the connection down proves nothing.
"""

import random
from collections.abc import AsyncIterator
from functools import partial

import pytest
import pytest_asyncio
from chaos import pidns
from chaos.cluster import Ask, Cluster, plan, running_cluster
from chaos.node import Node

from baton.proto import common_pb2
from baton.transfer.handoff import HandoffState

pytestmark = pytest.mark.asyncio(loop_scope="module")

STOPPED = 4  # requests: more than the rank lets one peer keep in quarantine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[Cluster]:
    async with running_cluster(plan("nixl"), linked=False) as running:
        yield running


def granted(node: Node, ask: Ask) -> bool:
    return HandoffState.RESERVED in node.states_of(ask.request_id)


async def stopped_with_tickets(cluster: Cluster, rng: random.Random) -> list[Ask]:
    """p0 is stopped with several tickets of d0, and d0 has given it up."""
    asks = [Ask.draw(rng, 40, 60) for _ in range(STOPPED)]
    rank = cluster["d0"]
    await rank.ask("hold")  # it does not see what arrives, so none is complete
    replies = [await cluster.begin(ask, ["p0"], "d0") for ask in asks]
    for ask in asks:
        await rank.until(
            partial(granted, ask=ask),
            f"granted {ask.request_id} a ticket",
        )
    cluster["p0"].stop()
    for reply in replies:
        await reply.end()
        assert reply.finished is not None and reply.finished.error.message
        assert "p0" in reply.finished.error.message
    await rank.ask("let_go")
    return asks


async def test_a_stopped_writer_keeps_its_tickets_and_is_not_asked_for_more(
    cluster: Cluster,
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for proof in ("resumed", "killed"):
        await cluster.serve(Ask.draw(rng), "p0", "d0")
        await stopped_with_tickets(cluster, rng)
        books = await cluster["d0"].settled(quarantine=True)
        assert books.quarantined == STOPPED, "no proof, no memory"
        assert not books.findings
        await cluster.serve(Ask.draw(rng), "p1", "d0")
        refused = await (await cluster.begin(Ask.draw(rng), ["p0"], "d0")).end()
        assert refused.finished is not None
        assert refused.finished.error.code == common_pb2.UNAVAILABLE
        if proof == "resumed":
            cluster["p0"].resume()
        else:
            await cluster["p0"].end()
            await cluster.start("p0")
        await cluster.settled()
        await cluster.serve(Ask.draw(rng), "p0", "d0")
        await cluster.settled()


@pytest.mark.skipif(pidns.unavailable() is not None, reason=f"no namespace: {pidns.unavailable()}")
async def test_a_writer_in_another_pid_namespace_is_kept_out_by_the_teardown() -> None:
    """Nobody here would see its death; but it cannot reach into our memory either."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    async with running_cluster(plan("nixl", apart=True), linked=False) as cluster:
        rank, writer = cluster["d0"], cluster["p0"]
        await cluster.serve(Ask.draw(rng), "p0", "d0")
        (first, *_) = await stopped_with_tickets(cluster, rng)
        await rank.settled()
        assert HandoffState.QUARANTINED in rank.states_of(first.request_id)
        assert await rank.ask("reissue", first.request_id)
        writer.resume()
        await writer.settled()
        await cluster.serve(Ask.draw(rng), "p0", "d0")
        assert await rank.ask("intact"), "a dead ticket's memory was written"
        await stopped_with_tickets(cluster, rng)
        await writer.end()
        await rank.settled()
        await cluster.start("p0")
        await cluster.serve(Ask.draw(rng), "p0", "d0")
        await cluster.settled()
