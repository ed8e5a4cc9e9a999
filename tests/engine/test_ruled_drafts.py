"""Drafts under a grammar: what it wants next is guessed, and changes no token."""

import json
import random
from dataclasses import replace

import pytest
from engine.engines import finish_of, make_engine, random_prompt, run, tokens_of
from engine.test_speculation import answers, assert_same
from toy_tokenizer import byte_level

from baton.core.drafts import DraftSource
from baton.core.grammar import Grammar, GrammarKind
from baton.core.sampling_params import SamplingParams
from baton.engine.request.request import RequestSpec
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.engine.speculation.step_costs import StepCosts
from baton.text.special_tokens import SpecialTokens
from baton.text.tokenizer import Tokenizer

FORM = {
    "type": "object",
    "properties": {
        "abc": {"enum": ["bad", "cab"]},
        "dead_beef": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["abc", "dead_beef"],
    "additionalProperties": False,
}
SCHEMA = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(FORM))
REGEX = Grammar(GrammarKind.REGEX, r"abcabc(ab|cd)deadbeef[0-9]{2,3}-fed")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(byte_level(), SpecialTokens())


@pytest.mark.parametrize("algorithm", [SpeculativeAlgorithm.NGRAM, SpeculativeAlgorithm.AUTO])
@pytest.mark.parametrize("grammar", [REGEX, SCHEMA], ids=["regex", "schema"])
def test_what_a_grammar_wants_next_is_drafted(
    seeded: random.Random,
    tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
    grammar: Grammar,
    algorithm: SpeculativeAlgorithm,
) -> None:
    """Greedy and drawn, with a word that the grammar wants, but must not come."""
    monkeypatch.setattr(StepCosts, "ratio", lambda *_: 1.1)
    base = SamplingParams(temperature=0.0, max_tokens=60, grammar=grammar)
    drawn = replace(base, temperature=1.0, seed=seeded.randrange(1 << 60))
    samplings = [
        base,
        drawn,
        replace(drawn, presence_penalty=1.0, top_k=20),
        replace(base, bad_words=("ab",)),
        replace(drawn, bad_words=("5",)),
    ]
    specs = [RequestSpec(f"r{i}", random_prompt(seeded), s) for i, s in enumerate(samplings)]
    plain, before = answers(specs, tokenizer=tokenizer)
    found, engine = answers(
        specs,
        tokenizer=tokenizer,
        canary=True,
        speculative_algorithm=algorithm,
        speculative_num_draft_tokens=8,
    )
    assert_same(specs, plain, found)
    counts = [finish_of(found, spec.request_id).usage.drafts for spec in specs]
    forced = [count.of(DraftSource.GRAMMAR) for count in counts]
    assert forced[0].accepted > 10
    assert engine.counters.steps < before.counters.steps * 0.7
    # All are right where each text has one spelling.
    assert [count.accepted for count in forced[:2]] == [count.proposed for count in forced[:2]]


def test_tokens_that_follow_what_a_grammar_wants_come_from_a_prediction(
    seeded: random.Random, tokenizer: Tokenizer
) -> None:
    sampling = SamplingParams(temperature=0.0, max_tokens=60, grammar=REGEX)
    spec = RequestSpec("r", random_prompt(seeded), sampling)
    plain, _ = answers([spec], tokenizer=tokenizer)
    engine = make_engine(
        tokenizer=tokenizer,
        speculative_algorithm=SpeculativeAlgorithm.NGRAM,
        speculative_num_draft_tokens=8,
    )
    engine.submit(replace(spec, prediction_ids=tuple(tokens_of(plain, "r"))))
    found = run(engine)
    assert_same([spec], plain, found)
    drafts = finish_of(found, "r").usage.drafts
    assert drafts.of(DraftSource.PREDICTION).accepted >= 2
    assert drafts.of(DraftSource.GRAMMAR).accepted > 10
    assert drafts.accepted == drafts.proposed
