"""Two turns through the whole cluster: the second begins where the first has ended, on a worker
that has never computed its answer."""

import random

import pytest
from e2e.clients import DEADLINE_S, prompts_of

from baton.bench.cluster.stream_client import StreamedAnswer, complete
from baton.core.sampling_params import SamplingParams
from baton.deploy.cluster.cluster import Cluster
from baton.engine.engine import Engine

pytestmark = pytest.mark.cluster

ANSWER = 300  # tokens: past the first snapshot of a row that decodes


@pytest.mark.parametrize(
    ("rank", "then"),
    [(0, 0), (1, 0)],
    ids=["on the same rank", "on another, which the router tells where the state is"],
)
async def test_a_second_turn_hits_the_answer_of_the_first(
    cluster: Cluster, engine: Engine, rng: random.Random, rank: int, then: int
) -> None:
    prompt, more = prompts_of(rng, [70, 20])
    first = await _ask(cluster, prompt, ANSWER, rank)
    second = [*prompt, *first.token_ids, *more]
    answer = await _ask(cluster, second, 12, then)
    assert answer.cached_tokens >= engine.config.mamba_track_interval > len(prompt)
    greedy = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    (cold,) = engine.generate([second], greedy)
    assert list(answer.token_ids) == list(cold.token_ids)


async def _ask(
    cluster: Cluster, prompt: list[int], tokens: int, rank: int, **more: str
) -> StreamedAnswer:
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
            "return_token_ids": True, "routed_dp_rank": rank} | more  # fmt: skip
    return await complete(cluster.http_url, body, DEADLINE_S)


async def test_a_turn_of_another_salt_hits_nothing_of_the_first(
    cluster: Cluster, engine: Engine, rng: random.Random
) -> None:
    """Nor does it change the answer."""
    prompt, more = prompts_of(rng, [70, 20])
    first = await _ask(cluster, prompt, ANSWER, 0, cache_salt="ada")
    second = [*prompt, *first.token_ids, *more]
    other = await _ask(cluster, second, 12, 0, cache_salt="bob")
    none = await _ask(cluster, second, 12, 0)
    own = await _ask(cluster, second, 12, 1, cache_salt="ada")
    assert other.cached_tokens == none.cached_tokens == 0
    assert own.cached_tokens >= engine.config.mamba_track_interval > len(prompt)
    assert own.token_ids == other.token_ids == none.token_ids
