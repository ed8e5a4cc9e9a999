"""A worker that is killed: others go on with what it had, and it comes back."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.clients import assert_same_where_it_went_on, http_greedy, prompts_of
from oracle.reference import Oracle

from baton.bench.cluster.scrape import total
from baton.bench.cluster.stream_client import complete
from baton.core.sampling_params import SamplingParams
from baton.deploy.cluster.cluster import Cluster
from baton.engine.engine import Engine

pytestmark = pytest.mark.cluster

LONG = 960  # tokens of an answer: the context, but for the prompt
RETURN_S = 120.0
DEADLINE_S = 180.0


async def _until(true: Callable[[], bool], deadline_s: float) -> None:
    async with asyncio.timeout(deadline_s):
        while not true():
            await asyncio.sleep(0.05)


def _incarnations(cluster: Cluster) -> dict[str, int]:
    workers = cluster.router.server_info()["workers"]
    return {w["worker_id"]: w["incarnation"] for w in workers if w["ready"]}


def _running(cluster: Cluster, worker_id: str) -> int:
    workers = cluster.router.server_info()["workers"]
    return next((int(w["placed"]) for w in workers if w["worker_id"] == worker_id), 0)


def _replaced(cluster: Cluster) -> float:
    """Requests that decode-1 lost and that went on elsewhere."""
    return total([cluster.router.metrics()], "baton_router_retries_total", worker="decode-1")


async def _back(cluster: Cluster, worker_id: str, before: dict[str, int]) -> None:
    """Wait until the worker is back in a new incarnation, with every other worker in its old
    one."""

    def healed() -> bool:
        now = _incarnations(cluster)
        return now.keys() == before.keys() and now[worker_id] > before[worker_id]

    await _until(healed, RETURN_S)
    now = _incarnations(cluster)
    assert {k: v for k, v in now.items() if k != worker_id} == {
        k: v for k, v in before.items() if k != worker_id
    }


async def test_a_decode_rank_is_killed_under_load(
    cluster: Cluster, engine: Engine, oracle: Oracle, model: Path, rng: random.Random
) -> None:
    before, replaced = _incarnations(cluster), _replaced(cluster)
    prompts = prompts_of(rng, [30] * 4)
    expected = [
        list(output.token_ids)
        for output in engine.generate(
            prompts, SamplingParams(temperature=0, max_tokens=LONG, ignore_eos=True)
        )
    ]
    body = {"temperature": 0, "max_tokens": LONG, "ignore_eos": True, "return_token_ids": True}
    asked = [
        asyncio.create_task(complete(cluster.http_url, body | {"prompt": prompt}, DEADLINE_S))
        for prompt in prompts
    ]
    await _until(lambda: _running(cluster, "decode-1") == 2, DEADLINE_S)
    cluster.kill("decode-1")
    answers = await asyncio.gather(*asked)
    tokens = [list(answer.token_ids) for answer in answers]
    assert_same_where_it_went_on(oracle, model, prompts, tokens, expected)
    assert _replaced(cluster) == replaced + 2
    await _back(cluster, "decode-1", before)
    short = prompts_of(rng, [50] * 4)
    again = engine.generate(short, SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
    assert await http_greedy(cluster, short, 8) == [list(o.token_ids) for o in again]


async def test_the_prefill_worker_is_killed_and_serving_heals(
    cluster: Cluster, engine: Engine, rng: random.Random
) -> None:
    before = _incarnations(cluster)
    cluster.kill("prefill-0")
    await _back(cluster, "prefill-0", before)
    prompts = prompts_of(rng, [50] * 4)
    again = engine.generate(prompts, SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
    assert await http_greedy(cluster, prompts, 8) == [list(o.token_ids) for o in again]
