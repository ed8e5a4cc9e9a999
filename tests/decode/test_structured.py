"""Answers that must look like something, some of them behind reasoning, their first token drawn by
one worker, the rest by another."""

import json
import random
from typing import Any

import pytest
from decode.test_families import Gated
from oracle.reference import Oracle
from worker.cluster import decode_worker, prefill_worker, running, session

from baton.core.grammar import Grammar, GrammarKind
from baton.core.sampling_params import SamplingParams
from baton.proto import common_pb2
from baton.text.reasoned_grammar import behind_reasoning
from baton.text.reasoning import ReasoningFormat, ReasoningState
from baton.text.tokenizer import Tokenizer

PROMPTS = 200
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 4},
        "tags": {"type": "array", "items": {"enum": ["a", "bc"]}, "maxItems": 2},
        "deep": {
            "type": "object",
            "properties": {"n": {"type": "integer", "minimum": -9, "maximum": 99}},
            "required": ["n"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "tags", "deep"],
    "additionalProperties": False,
}


@pytest.mark.timeout(600)
async def test_it_always_parses_at_a_high_temperature(
    oracle: Oracle, seeded: random.Random
) -> None:
    folder = oracle.checkpoint("granite_dense_nope")
    tokenizer = Tokenizer.from_folder(folder)
    options: dict[str, Any] = {"page_size": 16, "chunk": 64, "max_model_len": 256, "pages": 3000}
    options |= {"tokenizer": tokenizer, "max_running": 32, "tickets": 32}
    plain = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))
    form = ReasoningFormat("[", "e")
    reasoned = behind_reasoning(plain, form, ReasoningState.OPEN, {})
    (end,) = tokenizer.encode(form.end, add_special_tokens=False)
    prefill = prefill_worker(model=Gated(folder), **options)
    decode = decode_worker(model=Gated(folder), **options)
    async with running(prefill, decode), session(decode) as router:
        started = [
            await router.start(
                tuple(seeded.randrange(3, 250) for _ in range(seeded.randint(1, 30))),
                SamplingParams(
                    temperature=1.5,
                    seed=seeded.getrandbits(64),
                    max_tokens=200,
                    grammar=reasoned if number % 2 else plain,
                    logit_bias=((end, 8.0),) if number % 2 else (),
                ),
                [prefill],
            )
            for number in range(PROMPTS)
        ]
        seen = set()
        for number, (_, answer) in enumerate(started):
            await answer.end()
            assert answer.finished is not None
            text = tokenizer.decode(answer.token_ids)
            assert answer.finished.reason == common_pb2.STOP, text
            if number % 2:
                thought, mark, text = text.partition(form.end)
                assert mark, thought
            found = json.loads(text)
            assert list(found) == ["name", "tags", "deep"]
            assert set(found["tags"]) <= {"a", "bc"} and -9 <= found["deep"]["n"] <= 99
            seen.add(text)
        assert len(seen) > PROMPTS / 2, "high temperature, yet the same answers"
        await decode.clean()
        await prefill.clean()
