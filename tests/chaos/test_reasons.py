"""A death is told by the connections that it breaks and a failure by whoever sees it: neither waits
for a lease. The lease here is longer than any wait of these tests."""

import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from chaos.cluster import Ask, Cluster, plan, running_cluster
from chaos.fault_point import Act
from chaos.node import DEADLINE_S

from baton.proto import common_pb2
from baton.transfer.handoff import HandoffState

S = HandoffState
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["grpc", "nixl"])
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    lease_ms = round(10_000 * DEADLINE_S)
    async with running_cluster(plan(request.param, lease_ms), linked=False) as running:
        yield running


@pytest.mark.parametrize("state", [S.SCHEDULED, S.WRITING])
async def test_a_death_reaches_the_other_side_before_any_lease_ends(
    state: HandoffState, cluster: Cluster
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    ask = Ask.draw(rng, 20)
    await cluster["p0"].arm(ask.request_id, state, Act.KILL)
    reply = await (await cluster.begin(ask, ["p0"], "d0")).end()
    assert reply.finished is not None
    assert reply.finished.error.code == common_pb2.UNAVAILABLE
    assert "p0" in reply.finished.error.message
    await cluster.settled("d0")
    await cluster["p0"].end()
    await cluster.start("p0")

    ask = Ask.draw(rng, 20)
    await cluster["d0"].arm(ask.request_id, state, Act.KILL)
    reply = await (await cluster.begin(ask, ["p0"], "d0")).end()
    assert reply.lost is not None
    await cluster.settled("p0")
    await cluster["d0"].end()
    await cluster.start("d0")
    await cluster.serve(Ask.draw(rng), "p0", "d0")


async def test_a_payload_that_is_spoilt_reaches_both_sides_with_its_reason(
    cluster: Cluster,
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    await cluster.serve(Ask.draw(rng), "p0", "d0")
    await cluster["d0"].ask("spoil")
    reply = await (await cluster.begin(Ask.draw(rng, 20), ["p0"], "d0")).end()
    assert reply.finished is not None
    assert reply.finished.error.code in (common_pb2.DATA_LOSS, common_pb2.UNAVAILABLE)
    await cluster.settled()
    await cluster.serve(Ask.draw(rng), "p0", "d0")
