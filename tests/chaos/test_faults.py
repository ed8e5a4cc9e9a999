"""Real processes that die, stop and are cut off, at every state of a hand-off."""

import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from chaos.case import Case, Fault, Run
from chaos.cluster import LEASE_MS, Cluster, running_cluster
from chaos.node_main import NodePlan

from baton.transfer.handoff import HandoffState
from baton.worker.config import Role

S = HandoffState
pytestmark = pytest.mark.asyncio(loop_scope="module")

WAY = (S.QUEUED, S.SCHEDULED, S.RESERVED, S.WRITING, S.COMPLETE)
TABLE = [
    Case(state, watch, victim, fault)
    for watch, states in (("p0", WAY), ("d0", (*WAY, S.ACTIVE)))
    for state in states
    for victim in ("p0", "d0")
    for fault in Fault
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[Cluster]:
    plan = NodePlan("", Role.PREFILL, "", LEASE_MS, "grpc")
    async with running_cluster(plan, linked=True) as running:
        yield running


@pytest.mark.parametrize("case", TABLE, ids=str)
async def test_a_fault_leaves_right_tokens_and_clean_books(case: Case, cluster: Cluster) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    told = await Run(cluster, case, random.Random(seed)).run()
    print(f"{case}: {told}")
