"""Grammars over real tokenizers: what they let through, and what they refuse."""

import json
import random
import re
from array import array

import pytest
import toy_tokenizer
from tokenizers import Tokenizer as Backend

from baton.core.grammar import Grammar, GrammarKind
from baton.text.errors import GrammarError
from baton.text.grammar import MAX_GRAMMAR_CHARS, GrammarCompiler
from baton.text.special_tokens import SpecialTokens
from baton.text.tokenizer import Tokenizer

END = 1
UNUSED = 70  # ids that the model has and the tokenizer lacks
NUMBER = Grammar(GrammarKind.JSON_SCHEMA, json.dumps({"type": "integer", "minimum": -50}))
CAFE = Grammar(GrammarKind.REGEX, "(café|日本|😀){2}")


def tokenizer_of(backend: Backend) -> Tokenizer:
    return Tokenizer(backend, SpecialTokens())


@pytest.fixture(params=[toy_tokenizer.byte_level, toy_tokenizer.byte_fallback])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return tokenizer_of(request.param())


@pytest.fixture
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, tokenizer.vocab_size + UNUSED, {END})


def ids(mask: "array[int]") -> list[int]:
    return [64 * w + bit for w, word in enumerate(mask) for bit in range(64) if word >> bit & 1]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("grammar", "pattern"), [(NUMBER, r"-?\d+"), (CAFE, CAFE.text)])
def test_any_walk_through_the_masks_ends_in_what_was_asked_for(
    tokenizer: Tokenizer, compiler: GrammarCompiler, grammar: Grammar, pattern: str, seed: int
) -> None:
    rng = random.Random(seed)
    state = compiler.compile(grammar).start()
    answer: list[int] = []
    while not state.ended:
        allowed = ids(state.allowed())
        assert max(allowed) < tokenizer.vocab_size
        token = END if END in allowed and len(answer) > 8 else rng.choice(allowed)
        state.push(token)
        answer += [token] * (token != END)
    assert re.fullmatch(pattern, tokenizer.decode(answer).strip())


def test_answers_to_one_grammar_go_their_own_ways(compiler: GrammarCompiler) -> None:
    first, second = compiler.compile(NUMBER).start(), compiler.compile(NUMBER).start()
    before = second.allowed()
    first.push(ids(first.allowed())[0])
    assert second.allowed() == before


def test_a_token_that_may_not_come_is_refused(compiler: GrammarCompiler) -> None:
    state = compiler.compile(NUMBER).start()
    with pytest.raises(GrammarError, match="left its grammar"):
        state.push(END)


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        (GrammarKind.REGEX, "[a-", "unclosed"),
        (GrammarKind.REGEX, "a" * (MAX_GRAMMAR_CHARS + 1), "at most 65536"),
        (GrammarKind.JSON_SCHEMA, '{"type": "objct"}', "objct"),
        (GrammarKind.JSON_SCHEMA, "[]", "no JSON object"),
        (GrammarKind.JSON_SCHEMA, "{", "no JSON object"),
        (GrammarKind.EBNF, "root = a", "ebnf cannot be used"),
        (GrammarKind.LARK, "start: A", "unknown name"),
    ],
)
def test_what_is_no_grammar_is_refused_with_the_reason(
    compiler: GrammarCompiler, kind: GrammarKind, text: str, why: str
) -> None:
    for _ in range(2):  # the second time, it is known
        with pytest.raises(GrammarError, match=why):
            compiler.compile(Grammar(kind, text))
    with pytest.raises(GrammarError, match=why):
        compiler.kept(Grammar(kind, text))
    compiler.compile(NUMBER)


def test_a_grammar_that_grows_too_large_is_refused_in_words() -> None:
    """It passes llguidance's own check, and then makes it panic after a second."""
    keys = [[f"k{i}_{j}" for j in range(4)] for i in range(6)]
    alternatives = [
        {"anyOf": [{"type": "object", "properties": {key: {"type": "integer"}}} for key in some]}
        for some in keys
    ]
    compiler = GrammarCompiler(tokenizer_of(toy_tokenizer.byte_level()), 400, {END})
    with pytest.raises(GrammarError, match="too big") as refused:
        compiler.compile(Grammar(GrammarKind.JSON_SCHEMA, json.dumps({"allOf": alternatives})))
    assert "backtrace" not in str(refused.value) and "panic" not in str(refused.value)


def test_a_model_without_an_end_cannot_be_held_to_a_grammar(tokenizer: Tokenizer) -> None:
    with pytest.raises(GrammarError, match="end-of-sequence"):
        GrammarCompiler(tokenizer, tokenizer.vocab_size, ()).compile(NUMBER)


def test_what_must_come_next_is_spelt_as_the_tokenizer_does(
    tokenizer: Tokenizer, compiler: GrammarCompiler
) -> None:
    state = compiler.compile(Grammar(GrammarKind.REGEX, "hello world[ab] there")).start()
    spelt = []
    for _ in range(30):
        forced = list(state.forced())
        if not forced and ids(state.allowed()) == [END]:
            break
        spelt += forced or ids(state.allowed())[:1]
        for token in forced or spelt[-1:]:
            assert token in ids(state.allowed())
            state.push(token)
    text = tokenizer.decode(spelt)
    assert re.fullmatch("hello world[ab] there", text)
    assert len(spelt) <= len(tokenizer.encode(text, add_special_tokens=False)) + 2
