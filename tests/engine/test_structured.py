"""Answers that must look like something, from a real checkpoint at a high temperature."""

import json
import random
import re
from pathlib import Path

import pytest
from engine.engines import assert_clean, finish_of, hand_over, run, tokens_of
from engine.engines import greedy as plain
from oracle.reference import Oracle

from baton.core.errors import RequestError
from baton.core.finish import FinishReason
from baton.core.grammar import Grammar, GrammarKind
from baton.core.sampling_params import SamplingParams
from baton.engine.engine import Engine
from baton.engine.request.request import RequestSpec
from baton.engine.settings.config import EngineConfig
from baton.text.reasoned_grammar import behind_reasoning
from baton.text.reasoning import ReasoningFormat, ReasoningState
from baton.text.tokenizer import Tokenizer

WORD = {"type": "string", "maxLength": 5}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": WORD,
        "kind": {"enum": ["hybrid", "dense"]},
        "layers": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99},
                   "maxItems": 3},
    },
    "required": ["name", "kind", "layers"],
    "additionalProperties": False,
}  # fmt: skip
GRAMMARS = {
    "json": Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA)),
    "regex": Grammar(GrammarKind.REGEX, r"(ab|cd){2,6}-[0-9]{3}"),
    "lark": Grammar(GrammarKind.LARK, 'start: "<" /[a-z]{1,8}/ ">"'),
    "ebnf": Grammar(GrammarKind.EBNF, 'root ::= "yes" | "no" ", " [a-f] [a-f]'),
}
THINKS = ReasoningFormat("[", "e")
"""A token each, which `sampling` makes likely."""
GRAMMARS["reasoned"] = behind_reasoning(GRAMMARS["json"], THINKS, ReasoningState.OPEN, {})
GRAMMARS["maybe reasoned"] = behind_reasoning(GRAMMARS["json"], THINKS, ReasoningState.FREE, {})
PATTERNS = {
    "regex": r"(ab|cd){2,6}-[0-9]{3}",
    "lark": "<[a-z]{1,8}>",
    "ebnf": "yes|no, [a-f][a-f]",
}


def fits(kind: str, text: str) -> bool:
    if kind == "reasoned" or (kind == "maybe reasoned" and text.lstrip().startswith(THINKS.begin)):
        _, mark, text = text.partition(THINKS.end)
        if not mark:
            return False
    elif kind in PATTERNS:
        return re.fullmatch(PATTERNS[kind], text) is not None
    answer = json.loads(text)
    return (
        list(answer) == ["name", "kind", "layers"]
        and len(answer["name"]) <= 5
        and answer["kind"] in ("hybrid", "dense")
        and all(0 <= number <= 99 for number in answer["layers"])
    )


@pytest.fixture
def folder(oracle: Oracle) -> Path:
    return oracle.checkpoint("granite_dense_nope")


def engine(folder: Path, **options: object) -> Engine:
    defaults: dict[str, object] = {
        "page_size": 16,
        "max_running": 8,
        "tickets": 8,
        "memory_bytes": 1 << 28,
        "chunked_prefill_size": 64,
    }
    return Engine.load(EngineConfig(model=folder, **defaults | options))  # type: ignore[arg-type]


def sampling(folder: Path, rng: random.Random, kind: str, max_tokens: int = 150) -> SamplingParams:
    soon: tuple[tuple[int, float], ...] = ()
    if "reasoned" in kind:
        tokenizer = Tokenizer.from_folder(folder)
        marks = tokenizer.encode(THINKS.begin + THINKS.end, add_special_tokens=False)
        soon = tuple((token, 8.0) for token in marks)
    return SamplingParams(
        temperature=1.5,
        seed=rng.getrandbits(64),
        max_tokens=max_tokens,
        grammar=GRAMMARS[kind],
        logit_bias=soon,
    )


def prompt(rng: random.Random) -> tuple[int, ...]:
    return tuple(rng.randrange(3, 250) for _ in range(rng.randint(1, 90)))


@pytest.mark.parametrize("overlap", [True, False])
def test_every_answer_fits_beside_others_that_may_say_anything(
    folder: Path, seeded: random.Random, overlap: bool
) -> None:
    of, tokenizer = engine(folder, overlap=overlap), Tokenizer.from_folder(folder)
    kinds = [*GRAMMARS, "free"] * 4
    params = [plain(30) if kind == "free" else sampling(folder, seeded, kind) for kind in kinds]
    outputs = of.generate([prompt(seeded) for _ in kinds], params)
    for kind, output in zip(kinds, outputs, strict=True):
        if kind == "free":
            assert len(output.token_ids) == 30
            continue
        assert output.finished.end.reason is FinishReason.STOP
        text = tokenizer.decode(output.token_ids)
        assert fits(kind, text), (kind, text)
    assert_clean(of)


@pytest.mark.parametrize("kind", ["json", "reasoned", "maybe reasoned"])
def test_a_handed_over_or_preempted_answer_goes_on_where_it_was(
    folder: Path, seeded: random.Random, kind: str
) -> None:
    source, target, tokenizer = engine(folder), engine(folder), Tokenizer.from_folder(folder)
    spec = RequestSpec("a", prompt(seeded), sampling(folder, seeded, kind), hold=True)
    alone = engine(folder).generate([spec.prompt_ids], spec.sampling)[0]
    source.submit(spec)
    first = tokens_of(run(source), "a")
    hand_over(source, target, spec, tuple(first))
    events = run(target)
    tokens = [*first, *tokens_of(events, "a")]
    assert tokens == list(alone.token_ids)
    assert finish_of(events, "a").end.reason is FinishReason.STOP
    assert fits(kind, tokenizer.decode(tokens))
    half = len(tokens) // 2  # as a retry gives it
    given = RequestSpec("b", spec.prompt_ids, spec.sampling, output_ids=tuple(tokens[:half]))
    target.submit(given)
    assert tokens_of(run(target), "b") == tokens[half:]


def test_an_answer_that_is_whole_already_is_not_gone_on_with(
    folder: Path, seeded: random.Random
) -> None:
    of, tokenizer = engine(folder), Tokenizer.from_folder(folder)
    whole = tuple(tokenizer.encode("no, af", add_special_tokens=False))
    of.submit(RequestSpec("a", (5, 6), sampling(folder, seeded, "ebnf"), output_ids=whole))
    (finished,) = run(of)
    assert finished == finish_of([finished], "a")
    assert finished.end.reason is FinishReason.STOP


def test_too_few_tokens_end_it_by_length(folder: Path, seeded: random.Random) -> None:
    of = engine(folder)
    (output,) = of.generate([(4, 5)], sampling(folder, seeded, "json", max_tokens=4))
    assert output.finished.end.reason is FinishReason.LENGTH
    assert len(output.token_ids) == 4


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (Grammar(GrammarKind.REGEX, "[a-"), "unclosed"),
        (Grammar(GrammarKind.JSON_SCHEMA, '{"type": "objct"}'), "objct"),
        (Grammar(GrammarKind.EBNF, "root = a"), "ebnf cannot be used"),
    ],
)
def test_a_grammar_that_is_none_is_refused_and_the_rest_goes_on(
    folder: Path, wrong: Grammar, why: str
) -> None:
    of = engine(folder)
    with pytest.raises(RequestError, match=why):
        of.submit(RequestSpec("a", (4, 5), SamplingParams(grammar=wrong)))
    with pytest.raises(RequestError, match="left its grammar"):
        of.submit(
            RequestSpec("a", (4, 5), SamplingParams(grammar=GRAMMARS["regex"]), output_ids=(9,))
        )
    assert len(of.generate([(4, 5)], plain(3))[0].token_ids) == 3
    assert_clean(of)
