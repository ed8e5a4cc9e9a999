"""A worker that is killed: others go on with what it had, and it comes back."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
from e2e.clients import assert_same_where_it_went_on, http_greedy, prompts_of
from kit.polling import until_asked
from oracle.reference import Oracle

from baton.bench.cluster.scrape import total
from baton.bench.cluster.stream_client import complete
from baton.core.grammar import Grammar, GrammarKind
from baton.core.sampling_params import SamplingParams
from baton.deploy.cluster.cluster import Cluster
from baton.engine.engine import Engine
from baton.text.reasoned_grammar import behind_reasoning
from baton.text.reasoning import ReasoningFormat, ReasoningState
from baton.text.tokenizer import Tokenizer

pytestmark = pytest.mark.cluster

LONG = 960  # tokens of an answer: the context, but for the prompt
RETURN_S = 120.0
DEADLINE_S = 180.0


LIST: dict[str, Any] = {
    "type": "array",
    "items": {"enum": [*range(10)]},
    "minItems": 150,
    "maxItems": 400,
}
THINKS = ReasoningFormat("[", "e")


def reasoned_list(tokenizer: Tokenizer, seed: int) -> SamplingParams:
    """Return the sampling of a list behind reasoning, which soon ends."""
    grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(LIST))
    (end,) = tokenizer.encode(THINKS.end, add_special_tokens=False)
    return SamplingParams(
        temperature=1.0,
        seed=seed,
        max_tokens=LONG,
        logit_bias=((end, 3.0),),
        grammar=behind_reasoning(grammar, THINKS, ReasoningState.OPEN, {}),
    )


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

    await until_asked(healed)
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
    bodies: list[dict[str, object]] = [body | {"prompt": prompt} for prompt in prompts]
    tokenizer = Tokenizer.from_folder(model)
    lists = [reasoned_list(tokenizer, rng.getrandbits(40)) for _ in range(4)]
    for prompt, sampling in zip(prompts_of(rng, [30] * 4), lists, strict=True):
        expected.append(list(engine.generate([prompt], sampling)[0].token_ids))
        assert sampling.grammar is not None
        bodies.append(
            body | {"prompt": prompt, "temperature": 1.0, "seed": sampling.seed}
            | {"logit_bias": dict(sampling.logit_bias), "ignore_eos": False}
            | {"guided_grammar": sampling.grammar.text}
        )  # fmt: skip
    asked = [asyncio.create_task(complete(cluster.http_url, body, DEADLINE_S)) for body in bodies]
    await until_asked(lambda: _running(cluster, "decode-1") == 4)
    cluster.kill("decode-1")
    answers = await asyncio.gather(*asked)
    tokens = [list(answer.token_ids) for answer in answers]
    assert_same_where_it_went_on(oracle, model, prompts, tokens[:4], expected[:4])
    assert tokens[4:] == expected[4:], "reasoning and the list behind it are the same"
    for ids in tokens[4:]:
        thought, _, listed = tokenizer.decode(ids).partition(THINKS.end)
        assert len(json.loads(listed)) >= LIST["minItems"], thought
    assert _replaced(cluster) == replaced + 4
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
