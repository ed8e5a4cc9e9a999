"""Placement by what workers say that they have cached, through the whole cluster."""

import asyncio
import random

import pytest
from e2e.clients import DEADLINE_S, prompts_of
from kit.polling import until_asked

from baton.bench.cluster.stream_client import StreamedAnswer, exchange
from baton.core.sampling_params import SamplingParams
from baton.deploy.cluster.cluster import Cluster
from baton.engine.engine import Engine

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.parametrize("running_cluster", ["grpc"], indirect=True, scope="session"),
]

PROMPTS = 8
LENGTH = 70  # tokens: past the first depth at which a state is kept


async def test_prompts_come_again_to_the_prefill_worker_that_has_their_state(
    cluster: Cluster, engine: Engine, rng: random.Random
) -> None:
    """Placed by turns, each would miss with a chance of one half."""
    prompts = prompts_of(rng, [LENGTH] * PROMPTS)
    await asyncio.to_thread(cluster.router.flush_cache)
    await _until_known(cluster, 0)
    for prompt in prompts:
        await _ask(cluster, prompt)
    await _until_known(cluster, PROMPTS)
    turns = [
        [*prompt, *more]
        for prompt, more in zip(prompts, prompts_of(rng, [9] * PROMPTS), strict=True)
    ]
    rng.shuffle(turns)
    answers = [await _ask(cluster, turn) for turn in turns]
    assert all(answer.cached_tokens >= 64 for answer in answers)
    greedy = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    cold = engine.generate(turns, greedy)
    assert [list(a.token_ids) for a in answers] == [list(c.token_ids) for c in cold]


async def _ask(cluster: Cluster, prompt: list[int]) -> StreamedAnswer:
    body = {"prompt": prompt, "max_tokens": 6, "temperature": 0, "ignore_eos": True,
            "return_token_ids": True}  # fmt: skip
    return (await exchange(cluster.address, body, DEADLINE_S)).answer()


async def _until_known(cluster: Cluster, least: int) -> None:
    """Wait until the router knows of `least` states or more, or of none."""

    def known() -> int:
        return int(cluster.router.server_info()["router"]["cached_prefixes"])

    await until_asked(lambda: known() >= least if least else not known(), known)
