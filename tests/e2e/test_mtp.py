"""A cluster whose ranks draft by the model's layer of multi-token prediction: prompts through a
hand-off, cached beginnings, the return of states and a rank's death give the answers of one engine
that runs no such layer."""

import random

import pytest
from e2e.clients import assert_same_where_it_went_on, http_greedy, prompts_of
from oracle.reference import Oracle

from baton.bench.cluster.scrape import total
from baton.core.sampling_params import SamplingParams
from baton.deploy.cluster.cluster import Cluster
from baton.engine.engine import Engine
from baton.engine.settings.config import EngineConfig

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.parametrize("running_cluster", ["mtp"], indirect=True, scope="session"),
]

LENGTHS = (1, 40, 70, 150)
TOKENS = 280  # past the first snapshot of a row that decodes


async def test_answers_are_those_of_an_engine_without_the_layer(
    cluster: Cluster, mtp_config: EngineConfig, oracle: Oracle
) -> None:
    plain, rng = Engine.load(mtp_config), random.Random(5)
    prompts = prompts_of(rng, LENGTHS)
    first = _expected(plain, prompts)
    assert await http_greedy(cluster, prompts, TOKENS) == first

    said = zip(prompts, first, prompts_of(rng, (9, 20, 3, 31)), strict=True)
    turns = [prompt + answer + more for prompt, answer, more in said]
    second = _expected(plain, turns)
    answers = await http_greedy(cluster, turns, TOKENS)
    assert_same_where_it_went_on(oracle, mtp_config.model, turns, answers, second)
    assert _sum(cluster, "baton_worker_prefix_fetches_total", outcome="fetched")
    assert _sum(cluster, "baton_engine_drafts_proposed_total", proposer="mtp")

    cluster.kill("decode-0")  # what it had cached is computed again
    answers = await http_greedy(cluster, turns, TOKENS)
    assert_same_where_it_went_on(oracle, mtp_config.model, turns, answers, second)


def _expected(engine: Engine, prompts: list[list[int]]) -> list[list[int]]:
    greedy = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    return [list(output.token_ids) for output in engine.generate(prompts, greedy)]


def _sum(cluster: Cluster, name: str, **labels: str) -> float:
    return total(list(map(cluster.router.metrics, cluster.workers)), name, **labels)
