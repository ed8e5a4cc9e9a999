"""Expressions that end answers find what Python's `re` finds, wherever pieces of text end."""

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.text.errors import StopRegexError
from baton.text.stop_regex import MAX_LINKS, compile_stops
from baton.text.stops import StopMatch, StopMatcher

LEAVES = ["a", "b", "[ab]", "[^a]", ".", r"\d", r"\W", "[a-c1-2]", r"\.", r"[\d.]", "\\n", "é"]
REPEATS = ["*", "+", "?", "{2}", "{1,3}", "{2,}", "{,2}", "+?"]
TEXT = st.text(alphabet="abc12.\né", max_size=12)


def joined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(REPEATS)).map(lambda pair: f"({pair[0]}){pair[1]}"),
    )


PATTERNS = st.recursive(st.sampled_from(LEAVES), joined, max_leaves=6)


def first_to_end(patterns: list[str], text: str) -> tuple[int, int] | None:
    """The match that ends first, and of those the longest, by trying everything."""
    for end in range(1, len(text) + 1):
        for start in range(end):
            if any(re.fullmatch(pattern, text[start:end]) for pattern in patterns):
                return start, end
    return None


def place(match: StopMatch | None) -> tuple[int, int] | None:
    return None if match is None else (match.start, match.end)


@settings(max_examples=400, deadline=None)
@given(st.lists(PATTERNS, min_size=1, max_size=2), TEXT, st.randoms(use_true_random=False))
def test_the_match_is_the_one_that_ends_first(
    patterns: list[str], text: str, rng: random.Random
) -> None:
    if any(re.fullmatch(pattern, "") for pattern in patterns):
        with pytest.raises(StopRegexError, match="empty text"):
            compile_stops(tuple(patterns))
        return
    expected = first_to_end(patterns, text)
    matcher = StopMatcher((), regexes=patterns)
    shown, rest = "", text
    while rest and matcher.match is None:
        size = rng.randint(1, 4)
        shown += matcher.push(rest[:size])
        rest = rest[size:]
    assert place(matcher.match) == expected
    kept = len(text) if expected is None else expected[0]
    assert shown + matcher.flush(kept) == text[:kept], "text that was to be cut has been shown"


@pytest.mark.parametrize(
    ("patterns", "text", "expected"),
    [
        (["(?:aa|a)b"], "xaab", (1, 4)),  # two ways to one position
        (["a*b"], "aaab", (0, 4)),  # the loop is also where a match begins
        (["ab", "b"], "ab", (0, 2)),  # two expressions that end together
        (["b", "ab"], "ab", (0, 2)),
        (["(?:a.|.b)c"], "abbc", (1, 4)),
        (["[ab]{2,4}c"], "abababc", (2, 7)),
    ],
)
def test_of_the_matches_that_end_together_the_one_that_began_first_counts(
    patterns: list[str], text: str, expected: tuple[int, int]
) -> None:
    matcher = StopMatcher((), regexes=patterns)
    shown = "".join(map(matcher.push, text))
    assert place(matcher.match) == expected == first_to_end(patterns, text)
    assert shown + matcher.flush(expected[0]) == text[: expected[0]]


def test_strings_and_expressions_are_searched_together() -> None:
    matcher = StopMatcher(["stop"], regexes=[r"\d{3}"])
    assert matcher.push("a 12st") == "a 12"
    assert matcher.push("op") == ""
    assert matcher.match == StopMatch("stop", 4, 8)
    matcher = StopMatcher(["23"], regexes=[r"[a-z]\d+3"])
    assert matcher.push("x1") == "" and matcher.push("23") == ""
    assert matcher.match == StopMatch(r"[a-z]\d+3", 0, 4), "the longer of two that end together"


def test_a_match_does_not_count_before_it_may() -> None:
    matcher = StopMatcher((), regexes=["b+"])
    assert matcher.push("ab", armed=False) == "a"
    assert matcher.push("b", armed=True) == ""
    assert matcher.match == StopMatch("b+", 1, 3)


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("(a", r"a \( without its \)"),
        ("a)", r"a \) without its \("),
        ("[a", "middle of a group, a set or an escape"),
        ("[b-a]", "no order"),
        ("*a", r"nothing to repeat"),
        ("a**", "a repeat of a repeat"),
        ("a{3,2}", "a repeat of 3 to 2"),
        ("a{999999999}", "at most 256"),
        ("^a", r"\^ is not supported"),
        ("a$", r"\$ is not supported"),
        (r"\bword", r"\\b is not supported"),
        (r"(a)\1", r"\\1 is not supported"),
        ("(?=a)", r"\(\?= is not supported"),
        ("(?i)a", r"\(\?i is not supported"),
        (r"\x4", "hexadecimal"),
        ("a?", "empty text"),
        ("(" * 40 + "a" + ")" * 40, "32 deep"),
        ("(a{100}){100}", "too large"),
        ("((((){250}){250}){250}){250}a", "too large"),
        ("(" + "|".join("a" * 90) + "){2}", "too large"),
    ],
)
def test_what_is_wrong_is_said(pattern: str, said: str) -> None:
    with pytest.raises(StopRegexError, match=said) as error:
        compile_stops((pattern,))
    assert "stop_regex" in str(error.value)


def test_the_cost_of_a_character_is_bounded() -> None:
    for pattern in ("x" * 256, "[ab]{250}c", "(a|b|c|d){1,30}e", ".{0,200}x"):
        machine = compile_stops((pattern,))
        assert sum(map(len, machine.follow)) <= 2 * MAX_LINKS
