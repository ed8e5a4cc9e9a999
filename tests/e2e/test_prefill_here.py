"""Prompts that a rank computes itself, beside those that are handed over, in the whole cluster."""

import asyncio
import random
import time
from collections import Counter

import pytest
from e2e.clients import DEADLINE_S, prompts_of
from prometheus_client.parser import text_string_to_metric_families

from baton.bench.cluster.stream_client import exchange
from baton.core.sampling_params import SamplingParams
from baton.deploy.cluster.cluster import Cluster
from baton.engine.engine import Engine

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.parametrize("running_cluster", ["grpc"], indirect=True, scope="session"),
]

N = 12
PLACED = "baton_router_prefill_placements_total"


async def test_a_rank_computes_what_would_wait_behind_long_prompts(
    cluster: Cluster, engine: Engine, rng: random.Random
) -> None:
    """Three long prompts fill the prefill workers, so a short one is done sooner on its rank."""
    before = await asyncio.to_thread(_placed, cluster)
    greedy = SamplingParams(temperature=0.0, max_tokens=N, ignore_eos=True)
    until = time.monotonic() + DEADLINE_S
    while True:
        prompts = prompts_of(rng, [400, 400, 400, 20])
        answers = await asyncio.gather(
            *(_ask(cluster, prompt, int(len(prompt) == 20)) for prompt in prompts)
        )
        cold = engine.generate(prompts, greedy)
        assert answers == [list(each.token_ids) for each in cold]
        more = await asyncio.to_thread(_placed, cluster) - before
        here = {name for name in more if name.startswith("decode")}
        if here:
            assert more.keys() - here, "and others were handed over"
            break
        assert time.monotonic() < until, f"nothing was computed on a rank: {more}"

    info = await asyncio.to_thread(cluster.router.server_info)
    assert info["router"]["prefill_here"] == "auto"
    assert any(worker["prompt_token_us"] > 0 for worker in info["workers"]), "it went by that"
    for worker in info["workers"]:
        assert (worker["prefill_here_tokens"] is None) is (worker["role"] == "prefill")


async def _ask(cluster: Cluster, prompt: list[int], rank: int) -> list[int]:
    body = {"prompt": prompt, "max_tokens": N, "temperature": 0, "ignore_eos": True,
            "return_token_ids": True, "routed_dp_rank": rank}  # fmt: skip
    return list((await exchange(cluster.address, body, DEADLINE_S)).answer().token_ids)


def _placed(cluster: Cluster) -> Counter[str]:
    """Return the attempts so far by the worker that computed their prompt."""
    return Counter(
        {
            sample.labels["worker"]: int(sample.value)
            for family in text_string_to_metric_families(cluster.router.metrics())
            for sample in family.samples
            if sample.name == PLACED
        }
    )
