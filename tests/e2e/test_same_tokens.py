"""A cluster says what one engine says, and what transformers says."""

import asyncio
import random
from pathlib import Path
from typing import Any

import openai
import pytest
from e2e.clients import greedy_request, grpc_replies, http_greedy, prompts_of
from oracle.reference import Oracle

from baton.core.sampling_params import SamplingParams
from baton.deploy.cluster.cluster import Cluster
from baton.engine.engine import Engine
from baton.text.tokenizer import Tokenizer

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.parametrize("running_cluster", ["auto", "grpc"], indirect=True, scope="session"),
]

# Round pages (16), prefill chunks (64) and kernel chunks (32), and well past them.
LENGTHS = (1, 15, 16, 17, 63, 64, 65, 300)
N = 48


def _in_process(engine: Engine, prompts: list[list[int]], **sampling: Any) -> list[list[int]]:
    params = SamplingParams(max_tokens=N, ignore_eos=True, **sampling)
    return [list(output.token_ids) for output in engine.generate(prompts, params)]


async def test_ragged_prompts_over_http_all_at_once(
    cluster: Cluster, engine: Engine, oracle: Oracle, model: Path, rng: random.Random
) -> None:
    prompts = prompts_of(rng, LENGTHS)
    answers = await http_greedy(cluster, prompts, N)
    assert answers == _in_process(engine, prompts, temperature=0)
    oracle.assert_all_greedy(model, prompts, answers, N)


async def test_ragged_prompts_over_grpc_all_at_once(
    cluster: Cluster, engine: Engine, rng: random.Random
) -> None:
    prompts = prompts_of(rng, LENGTHS)
    streams = await asyncio.gather(
        *(grpc_replies(cluster, greedy_request(prompt, N)) for prompt in prompts)
    )
    answers = [[token for reply in replies for token in reply.token_ids] for replies in streams]
    assert answers == _in_process(engine, prompts, temperature=0)
    for prompt, replies in zip(prompts, streams, strict=True):
        usage, timings = replies[-1].finished.usage, replies[-1].finished.timings
        assert (usage.prompt_tokens, usage.completion_tokens) == (len(prompt), N)
        assert timings.prefill_us > 0 and timings.e2e_us > timings.ttft_us > 0
        handed_over = timings.transfer_us > 0
        assert handed_over is (timings.first_decode_step_us > 0)
        assert handed_over or cluster.config.router.prefill_here is None


async def test_seeded_samples_are_the_same_on_any_rank(
    cluster: Cluster, engine: Engine, rng: random.Random
) -> None:
    prompt = prompts_of(rng, [40])[0]
    seed = rng.randrange(2**63)
    sampled = {"temperature": 0.9, "top_p": 0.95, "top_k": 50, "seed": seed}
    answers = await http_greedy(cluster, [prompt] * 4, N, **sampled)
    assert answers == _in_process(engine, [prompt], **sampled) * 4


async def test_biases_and_bans_act_from_the_first_token_on(
    cluster: Cluster, engine: Engine, rng: random.Random
) -> None:
    """The prefill worker draws the first token, and the rank draws the others."""
    prompt = prompts_of(rng, [40])[0]
    (free,) = _in_process(engine, [prompt], temperature=0)
    banned, wanted = free[0], next(token for token in range(5, 200) if token not in free)
    biases = {banned: -100.0, wanted: 3.0}
    (expected,) = _in_process(engine, [prompt], temperature=0, logit_bias=biases)
    assert banned not in expected
    more = {"logit_bias": {str(token): bias for token, bias in biases.items()}}
    assert await http_greedy(cluster, [prompt], N, **more) == [expected]
    allowed = {"allowed_token_ids": free[1:]}
    answers = await http_greedy(cluster, [prompt], N, **allowed)
    assert answers == _in_process(engine, [prompt], temperature=0, **allowed)
    assert set(answers[0]) <= set(free[1:])


async def test_text_and_chat_through_the_openai_client(
    cluster: Cluster, engine: Engine, model: Path
) -> None:
    tokenizer = Tokenizer.from_folder(model)
    prompt = "Once upon a time there was a baton."
    expected = tokenizer.decode(_in_process(engine, [tokenizer.encode(prompt)], temperature=0)[0])
    url, key = f"{cluster.http_url}/v1", cluster.address.api_key
    async with openai.AsyncOpenAI(base_url=url, api_key=key) as client:
        name = (await client.models.list()).data[0].id
        more = {"ignore_eos": True}
        completion = await client.completions.create(
            model=name, prompt=prompt, temperature=0, max_tokens=N, stream=True, extra_body=more
        )
        assert "".join([chunk.choices[0].text async for chunk in completion]) == expected
        chat = await client.chat.completions.create(
            model=name,
            messages=[{"role": "user", "content": prompt}],
            temperature=0,
            max_tokens=N,
            stream=True,
            extra_body=more,
        )
        said = [chunk.choices[0].delta.content or "" async for chunk in chat]
        assert "".join(said) == expected


@pytest.mark.parametrize("n", [1, 2])
async def test_answers_of_one_and_of_two_tokens(
    cluster: Cluster, engine: Engine, rng: random.Random, n: int
) -> None:
    """One ends at prefill and takes no ticket; two is the shortest that does."""
    prompts = prompts_of(rng, [5, 100])
    answers = await http_greedy(cluster, prompts, n)
    assert answers == [tokens[:n] for tokens in _in_process(engine, prompts, temperature=0)]


async def test_more_requests_than_fit_at_once_all_get_their_answers(
    cluster: Cluster, engine: Engine, rng: random.Random
) -> None:
    prompts = prompts_of(rng, [rng.randrange(1, 120) for _ in range(40)])
    assert await http_greedy(cluster, prompts, N) == _in_process(engine, prompts, temperature=0)
