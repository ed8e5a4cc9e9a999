"""Patterns of ECMAScript in the dialect of llguidance."""

import json
import random
import re
import warnings

import pytest
import toy_tokenizer

from baton.core.grammar import Grammar, GrammarKind
from baton.text.errors import GrammarError
from baton.text.grammar import GrammarCompiler
from baton.text.json_schema.ecma_pattern import KNOWN, translated
from baton.text.special_tokens import SpecialTokens
from baton.text.tokenizer import Tokenizer

END = 1
LETTERS = "abc-.&~ #/1[]^"
SETS = ["[a&&b]", "[^a]", "[-a]", "[a-]", "[a-c]", "[\\d-]", "[[a]", "[~~a]", "[\\]]", "[\\w.-]"]
ESCAPES = ["\\.", "\\-", "\\/", "\\d", "\\w", "\\s", "\\x61", "\\u0062", "\\S", "."]


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    tokenizer = Tokenizer(toy_tokenizer.byte_level(), SpecialTokens())
    return GrammarCompiler(tokenizer, tokenizer.vocab_size, {END})


def matches(compiler: GrammarCompiler, pattern: str, text: str) -> bool:
    schema = json.dumps({"type": "string", "pattern": pattern})
    grammar = compiler.compile(Grammar(GrammarKind.JSON_SCHEMA, schema))
    ids = compiler._tokenizer.encode(json.dumps(text, ensure_ascii=False), add_special_tokens=False)
    try:
        state = grammar.start(ids)
        if not state.ended:
            state.push(END)
    except GrammarError:
        return False
    return True


def _atom(rng: random.Random, depth: int) -> str:
    kind = rng.randrange(4)
    if kind == 0 or depth > 2:
        return rng.choice("abc-&~ #/")
    if kind < 3:
        return rng.choice(SETS if kind == 1 else ESCAPES)
    options = [_sequence(rng, depth + 1, 2) for _ in range(rng.randint(1, 2))]
    return f"({rng.choice(['', '?:'])}{'|'.join(options)})"


def _sequence(rng: random.Random, depth: int, most: int) -> str:
    repeats = ["", "", "", "?", "*", "{1,2}", "+"]
    return "".join(_atom(rng, depth) + rng.choice(repeats) for _ in range(rng.randint(0, most)))


@pytest.mark.parametrize("seed", range(4))
def test_random_patterns_match_what_they_match_elsewhere(
    compiler: GrammarCompiler, seed: int
) -> None:
    rng = random.Random(seed)
    compared = 0
    for _ in range(60):
        pattern = rng.choice(["", "^"]) + _sequence(rng, 0, 3) + rng.choice(["", "$"])
        found = translated(pattern)
        assert found is not None, pattern
        for _ in range(6):
            text = "".join(rng.choices(LETTERS, k=rng.randint(0, 3)))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # of `[[` and `&&` in Python
                wanted = re.search(pattern, text, re.ASCII) is not None
            try:
                assert matches(compiler, found, text) is wanted, (pattern, found, text)
            except GrammarError as error:
                assert "nsatisfiable" in str(error), (pattern, found)
            compared += wanted
    assert compared > 50


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("^[\\u0041-\\x43]\\u{44}$", ["AD", "CD"], ["DD"]),
        ("^\\ud83d\\ude00$", ["😀"], ["x"]),
        ("^[^]$", ["a", "\n"], [""]),
        ("^\\cJ\\0$", ["\n\0"], ["J0"]),
        ("^[\\b]$", ["\b"], ["b"]),
        ("^a{,2}b{$", ["a{,2}b{"], ["aab"]),
        ("^(?<year>\\d{2})-(?P<month>\\d)$", ["20-1"], ["20-x"]),
        ("\\Aa\\Z", ["a"], ["ab", "ba"]),
        ("(^a$)|(^b$)", ["a", "b"], ["ab"]),
        ("^\\<\\_\\@\\y$", ["<_@y"], ["y"]),
        ("^(?i:ab)c(?i)d$", ["ABcD"], ["abCd"]),
        ("^\\p{Lu}\\P{Lu}$", ["Éé"], ["éé"]),
    ],
)
def test_other_spellings_are_known(
    compiler: GrammarCompiler, pattern: str, good: list[str], bad: list[str]
) -> None:
    found = translated(pattern)
    assert found is not None
    assert all(matches(compiler, found, text) for text in good)
    assert not any(matches(compiler, found, text) for text in bad)


@pytest.mark.parametrize(
    "pattern",
    [
        "^(?!x)a$", "(?=x)", "(?<=x)a", "(?<!x)a", "\\bfoo", "a\\B", "(a)\\1", "(?<n>a)\\k<n>",
        "(?>a)", "a^", "a$b", "^(a$|b)c?", "[]", "[a", "\\", "\\ud800", "(?#x)", "a\\Ab",
    ],
)  # fmt: skip
def test_what_the_other_dialect_lacks_is_not_translated(pattern: str) -> None:
    assert translated(pattern) is None


@pytest.mark.parametrize("pattern", KNOWN)
def test_known_patterns_equal_what_stands_for_them(pattern: str) -> None:
    rng = random.Random(0)
    for _ in range(2000):
        text = "".join(rng.choices("+-.01", k=rng.randint(0, 5)))
        assert bool(re.search(pattern, text)) is bool(re.search(KNOWN[pattern], text)), text
