"""Real processes that die, stop, are cut off and are sent rubbish, at every state of a hand-off.

`make chaos` runs the whole table and 500 random runs; by default, a part of each.
"""

import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from chaos import netns, pidns
from chaos.case import Case, Fault, Run, second_faults, table
from chaos.cluster import RETURNING, UCX_TCP, Cluster, plan, running_cluster
from chaos.node import NodeGone

from baton.transfer.handoff import HandoffState

S = HandoffState
pytestmark = pytest.mark.asyncio(loop_scope="module")

TABLE = table()
CORE = [
    Case(S.WRITING, "p0", "p0", Fault.KILL),
    Case(S.WRITING, "p0", "d0", Fault.KILL),
    Case(S.RESERVED, "d0", "p0", Fault.STOP),
    Case(S.WRITING, "p0", "p0", Fault.STOP),
    Case(S.WRITING, "d0", "d0", Fault.STOP),
    Case(S.WRITING, "p0", "p0", Fault.CUT),
    Case(S.WRITING, "d0", "d0", Fault.CUT),
    Case(S.WRITING, "d0", "d0", Fault.CANCEL),
    Case(S.RESERVED, "p0", "d0", Fault.SPOIL),
    Case(S.WRITING, "p0", "d0", Fault.LATE),
]
PLANS = {
    "grpc": plan("grpc"),
    "nixl": plan("nixl"),
    "nixl-tcp": plan("nixl", env=UCX_TCP),
    "nixl-apart": plan("nixl", apart=True),
    "returning": plan("grpc", options=RETURNING),
    "nixl-returning": plan("nixl", options=RETURNING),
}
CI = pytest.mark.parametrize("cluster", ["grpc", "nixl", "nixl-tcp"], indirect=True)
EVERY = pytest.mark.parametrize("cluster", PLANS, indirect=True)
SEEDS = range(10)  # of each channel, as the next
MANY_SEEDS = range(10, 94)  # 504 in all


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    wanted = PLANS[request.param]
    if wanted.apart and (why := pidns.unavailable()) is not None:
        pytest.skip(f"no namespaces: {why}")
    async with running_cluster(wanted, linked=True) as running:
        yield running


async def suffer(cluster: Cluster, case: Case, seed: int) -> None:
    if case.fault is Fault.CUT:
        if (why := netns.unavailable()) is not None:
            pytest.skip(f"no link to cut: {why}")
        if cluster.needs_no_link:
            pytest.skip("what goes by this machine's memory uses no link: nixl-tcp cuts it")
    try:
        told = await Run(cluster, case, random.Random(seed)).run()
    except (AssertionError, TimeoutError, NodeGone):
        await cluster.renew()  # what failed here may not fail the next
        raise
    print(f"{case}, seed {seed}: {told}")


def drawn(cluster: Cluster, seed: int) -> Case:
    """Return a random case of the table that this channel can suffer."""
    linked = not cluster.needs_no_link
    return random.Random(seed).choice([c for c in TABLE if linked or c.fault is not Fault.CUT])


def fresh_seed() -> int:
    return random.randrange(1 << 32)


@CI
@pytest.mark.parametrize("case", CORE, ids=str)
async def test_a_fault_leaves_right_tokens_and_clean_books(case: Case, cluster: Cluster) -> None:
    await suffer(cluster, case, fresh_seed())


@CI
@pytest.mark.parametrize("seed", SEEDS)
async def test_a_random_fault(seed: int, cluster: Cluster) -> None:
    await suffer(cluster, drawn(cluster, seed), seed)


@pytest.mark.chaos
@EVERY
@pytest.mark.parametrize("case", TABLE, ids=str)
async def test_every_fault_at_every_state(case: Case, cluster: Cluster) -> None:
    await suffer(cluster, case, fresh_seed())


@pytest.mark.chaos
@pytest.mark.parametrize("cluster", ["nixl", "nixl-tcp", "nixl-apart"], indirect=True)
@pytest.mark.parametrize("case", second_faults(), ids=str)
async def test_every_fault_of_memory_in_quarantine(case: Case, cluster: Cluster) -> None:
    await suffer(cluster, case, fresh_seed())


@pytest.mark.chaos
@EVERY
@pytest.mark.parametrize("seed", MANY_SEEDS)
async def test_many_random_faults(seed: int, cluster: Cluster) -> None:
    await suffer(cluster, drawn(cluster, seed), seed)
