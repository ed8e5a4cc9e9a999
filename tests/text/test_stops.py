"""The stop matcher against a naive search of all the text."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.text.stops import StopMatch, StopMatcher

# Two letters make overlaps, repeats and stop strings inside stop strings common.
words = st.text("ab", min_size=1, max_size=5)
stop_lists = st.lists(words, max_size=4)
pieces = st.lists(st.tuples(st.text("ab", max_size=6), st.booleans()), max_size=8)


def naive_match(text: str, armed: list[bool], stops: list[str]) -> StopMatch | None:
    for end in range(1, len(text) + 1):
        found = [s for s in stops if text[:end].endswith(s)]
        if found and armed[end - 1]:
            longest = max(found, key=len)
            return StopMatch(longest, end - len(longest), end)
    return None


def naive_shown(text: str, stops: list[str], match: StopMatch | None, include: bool) -> str:
    if match is not None:
        return text[: match.end if include else match.start]
    if include:
        return text
    for start in range(len(text)):
        if any(s != text[start:] and s.startswith(text[start:]) for s in stops):
            return text[:start]
    return text


@given(stops=stop_lists, pieces=pieces, include=st.booleans())
def test_match_and_shown_text_agree_with_a_naive_search_after_every_piece(
    stops: list[str], pieces: list[tuple[str, bool]], include: bool
) -> None:
    matcher = StopMatcher(stops, include_stop=include)
    text, shown, armed = "", "", []
    for piece, is_armed in pieces:
        text += piece
        armed += [is_armed] * len(piece)
        shown += matcher.push(piece, is_armed)
        match = naive_match(text, armed, stops)
        assert matcher.match == match
        assert shown == naive_shown(text, stops, match, include)
        assert matcher.seen == len(text)
    assert shown + matcher.flush(matcher.keep) == text[: matcher.keep]


@given(stops=stop_lists, text=st.text("ab", max_size=30), cuts=st.sets(st.integers(0, 30)))
def test_the_match_does_not_depend_on_token_boundaries(
    stops: list[str], text: str, cuts: set[int]
) -> None:
    whole, split = StopMatcher(stops), StopMatcher(stops)
    whole.push(text)
    edges = [0, *sorted(c for c in cuts if c < len(text)), len(text)]
    for start, end in pairwise(edges):
        split.push(text[start:end])
    assert split.match == whole.match


def test_text_that_may_begin_a_stop_string_waits_and_then_comes_out() -> None:
    matcher = StopMatcher(["STOP"])
    assert [matcher.push(t) for t in ("go S", "TO", "NE")] == ["go ", "", "STONE"]


def test_a_stop_string_over_three_tokens_never_shows() -> None:
    matcher = StopMatcher(["\n\nUser:"])
    assert [matcher.push(t) for t in ("fine.\n", "\nUs", "er: more")] == ["fine.", "", ""]
    assert matcher.match == StopMatch("\n\nUser:", 5, 12)
    assert matcher.seen - matcher.keep == len("\n\nUser: more")


def test_an_included_stop_string_shows_and_what_follows_does_not() -> None:
    matcher = StopMatcher(["END"], include_stop=True)
    assert [matcher.push(t) for t in ("the E", "ND of it")] == ["the E", "ND"]


def test_flush_shows_no_more_than_it_is_told_and_takes_nothing_back() -> None:
    matcher = StopMatcher(["STOP"])
    assert matcher.push("abcST") == "abc"
    assert matcher.flush(4) == "S"
    assert matcher.flush(1) == ""


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty stop string"):
        StopMatcher(["a", ""])
