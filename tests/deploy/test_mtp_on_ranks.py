"""Clusters whose decode worker has two tensor-parallel ranks and a layer of multi-token prediction:
one that chooses who drafts, and one that draws which drafts are right."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
from e2e.clients import DEADLINE_S, http_greedy, prompts_of
from mtp_models import MtpCheckpoints
from oracle.reference import Oracle

from baton.bench.cluster.scrape import total
from baton.core.sampling_params import SamplingParams
from baton.deploy.cluster.cluster import Cluster
from baton.deploy.cluster.config import ClusterConfig
from baton.engine.engine import Engine
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.engine.settings.config import EngineConfig
from baton.router.config import RouterConfig

pytestmark = pytest.mark.cluster

TOKENS = 80
LENGTH = 2.5  # tokens that a row with drafts is to give, where that is drawn
DECODE = "decode-0"


@pytest.fixture(scope="module")
def mtp_config(mtp_checkpoints: MtpCheckpoints) -> EngineConfig:
    """Small pages and chunks, so that every prompt of some length crosses several."""
    folder = mtp_checkpoints.folder("qwen3_next_moe")
    return EngineConfig(
        folder, page_size=16, chunked_prefill_size=64, max_running=8, memory_bytes=256 << 20
    )


@contextmanager
def on_two_ranks(
    config: EngineConfig, algorithm: SpeculativeAlgorithm, **more: Any
) -> Iterator[Cluster]:
    engine = replace(config, speculative_algorithm=algorithm, rank_timeout_s=60.0, **more)
    router = RouterConfig(engine.model, prefill_here=0)
    with Cluster(ClusterConfig(engine, router, decode_tp=2)) as cluster:
        yield cluster


def drafted(cluster: Cluster, what: str, **labels: str) -> float:
    return total([cluster.router.metrics(DECODE)], f"baton_engine_drafts_{what}_total", **labels)


async def test_ranks_that_choose_who_drafts_give_plain_answers(
    mtp_config: EngineConfig, oracle: Oracle
) -> None:
    prompts = prompts_of(random.Random(6), (3, 40, 70, 150))
    plain = Engine.load(mtp_config)
    greedy = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    expected = [list(output.token_ids) for output in plain.generate(prompts, greedy)]
    with on_two_ranks(replace(mtp_config, mtp=None), SpeculativeAlgorithm.AUTO) as cluster:

        async def answers() -> bool:
            found = await http_greedy(cluster, prompts, TOKENS)
            if found != expected:  # two ranks add in another order than one
                oracle.assert_all_greedy(mtp_config.model, prompts, found, TOKENS)
            return drafted(cluster, "proposed", proposer="mtp") > 0

        for _ in range(10):  # it tries the layer once it knows what steps cost
            if await answers():
                break
        else:
            pytest.fail("the layer never drafted")


async def test_ranks_that_draw_which_drafts_are_right_say_so(mtp_config: EngineConfig) -> None:
    config = replace(mtp_config, mtp=True, speculative_num_draft_tokens=4)
    algorithm = SpeculativeAlgorithm.MTP
    body = {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}
    with on_two_ranks(config, algorithm, speculative_synthetic_acceptance=LENGTH) as cluster:
        async with httpx.AsyncClient(base_url=cluster.http_url, timeout=DEADLINE_S) as client:
            for prompt in prompts_of(random.Random(7), (3, 40, 70, 150)):
                reply = await client.post("/v1/completions", json={"prompt": prompt} | body)
                assert reply.status_code == 200, reply.text
                assert reply.headers["x-baton-synthetic-acceptance"] == f"{LENGTH:g}"
                assert reply.json()["usage"]["completion_tokens"] == TOKENS
        accepted, proposed = (drafted(cluster, what) for what in ("accepted", "proposed"))
    steps = proposed / 3
    assert 1 + accepted / steps == pytest.approx(LENGTH, abs=0.5)
