"""A machine that is lost without a word, and never comes back, leaves nothing behind."""

import asyncio
import random

import pytest
from chaos.cluster import PAIRS, Ask, Cluster, plan, running_cluster
from chaos.fault_point import Act
from chaos.netns import unavailable
from chaos.node import DEADLINE_S

from baton.transfer.handoff import HandoffState

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(unavailable() is not None, reason=f"no machine to lose: {unavailable()}"),
]


@pytest.mark.parametrize("lost", ["p0", "d0"])
async def test_the_connections_to_a_lost_machine_are_closed(lost: str) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    async with running_cluster(plan(), linked=True) as cluster:
        others = [name for name in cluster.nodes if name != lost]
        await serve_all(cluster, rng, [pair for pair in PAIRS if lost not in pair])
        alone = {name: (await cluster[name].weigh()).fds for name in others}
        await serve_all(cluster, rng, PAIRS)
        ask = Ask.draw(rng, 20)
        await cluster["p0"].arm(ask.request_id, HandoffState.WRITING, Act.WAIT)
        await cluster.begin(ask, ["p0"], "d0")
        await cluster["p0"].reached.wait()
        assert cluster.net is not None
        await cluster.net.cut(lost)
        cluster["p0"].go()
        await cluster[lost].end()
        await cluster.settled(*others)
        async with asyncio.timeout(DEADLINE_S):
            for name in others:
                while (await cluster[name].weigh()).fds > alone[name]:
                    await asyncio.sleep(0.1)


async def serve_all(cluster: Cluster, rng: random.Random, pairs: list[tuple[str, str]]) -> None:
    for pair in pairs:
        await cluster.serve(Ask.draw(rng), *pair)
