"""Four ranks under load: two join, and leave again. No token is lost, and all ranks take part."""

import asyncio
import random
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
from e2e.clients import http_greedy, prompts_of
from prometheus_client.parser import text_string_to_metric_families

from baton.core.role import Role
from baton.core.sampling_params import SamplingParams
from baton.deploy.cluster.cluster import Cluster
from baton.engine.engine import Engine

pytestmark = pytest.mark.cluster

N = 24
DEADLINE_S = 240.0
LENGTHS = (1, 17, 40, 64, 100, 150, 200, 230)
PLACED = "baton_router_placements"


async def _scale(cluster: Cluster, count: int) -> None:
    scaling = asyncio.to_thread(cluster.scale, Role.DECODE, count, DEADLINE_S)
    await asyncio.wait_for(scaling, DEADLINE_S)


async def _placements(cluster: Cluster) -> dict[str, float]:
    """Return the attempts started on each rank so far, all counted at one moment."""

    def page() -> str:
        with urllib.request.urlopen(f"{cluster.http_url}/metrics", timeout=DEADLINE_S) as reply:
            text: str = reply.read().decode()
        return text

    families = text_string_to_metric_families(await asyncio.to_thread(page))
    found = next(family for family in families if family.name == PLACED)
    totals = [sample for sample in found.samples if sample.name.endswith("_total")]
    return {sample.labels["worker"]: sample.value for sample in totals}


class Clients:
    """One client a prompt, each asking again and again; every answer must be right."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._over = False
        self._answered = 0
        self._more = asyncio.Condition()

    async def ask(self, prompt: list[int], expected: list[int]) -> None:
        while not self._over:
            assert await http_greedy(self._cluster, [prompt], N) == [expected]
            async with self._more:
                self._answered += 1
                self._more.notify_all()

    async def answered(self, count: int) -> None:
        """Wait until so many more requests have been answered."""
        async with asyncio.timeout(DEADLINE_S), self._more:
            wanted = self._answered + count
            await self._more.wait_for(lambda: self._answered >= wanted)

    def end(self) -> None:
        self._over = True


@asynccontextmanager
async def _clients(
    cluster: Cluster, engine: Engine, prompts: list[list[int]]
) -> AsyncIterator[Clients]:
    params = SamplingParams(temperature=0, max_tokens=N, ignore_eos=True)
    outputs = engine.generate(prompts, params)
    clients = Clients(cluster)
    async with asyncio.TaskGroup() as group:
        for prompt, output in zip(prompts, outputs, strict=True):
            group.create_task(clients.ask(prompt, list(output.token_ids)))
        yield clients
        clients.end()


def _since(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {rank: after[rank] - before.get(rank, 0.0) for rank in after}


async def test_four_ranks_join_and_leave_under_load_and_share_it_evenly(
    cluster: Cluster, engine: Engine, rng: random.Random
) -> None:
    await _scale(cluster, 2)  # whatever a test before left
    async with _clients(cluster, engine, prompts_of(rng, LENGTHS)) as clients:
        await _scale(cluster, 4)
        before = await _placements(cluster)
        await clients.answered(40)
        placed = _since(before, await _placements(cluster))
        four = {f"decode-{number}": placed[f"decode-{number}"] for number in range(4)}
        # round_robin takes turns: between any two moments no rank is more than one turn ahead.
        assert min(four.values()) >= 9 and max(four.values()) - min(four.values()) <= 1, four
        await _scale(cluster, 2)
        before = await _placements(cluster)
        await clients.answered(20)
        left = _since(before, await _placements(cluster))
    assert left.get("decode-2", 0) == left.get("decode-3", 0) == 0, left
    assert abs(left["decode-0"] - left["decode-1"]) <= 1, left
    workers = cluster.router.server_info()["workers"]
    assert [w["worker_id"] for w in workers if w["role"] == "decode"] == ["decode-0", "decode-1"]
