"""Calls of all forms in random answers: whole, cut anywhere, and malformed in any way."""

import json
import re
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text.written_calls import FORMS, PARAMETERS, Calls

from baton.text.reasoning import ReasoningState, find_reasoning_format
from baton.text.reply_parser import Part, PartKind, ReplyParser, TextPart
from baton.text.tool_calls import CallMore

THINK = find_reasoning_format("<think></think>")
WORDS = ("alpha", "bravo", "rm -rf ./build", "x\ny", "it's", 'say "hi"', "</b>", "[1]", "{", "ß")
# Values hold marks of calls too, but never all that ends a call in tags.
ENDS = ("</parameter> b", "a </function> b", "a </tool_call> b", "a <parameter=x> b", "<tool_call>")
texts = st.lists(st.sampled_from(WORDS), max_size=3).map(" ".join)
extras = st.none() | st.dictionaries(st.sampled_from(["k", "l"]), texts | st.none(), max_size=2)
arguments = st.fixed_dictionaries(
    {},
    optional={
        "path": texts | st.sampled_from(ENDS),
        "count": st.integers(-(10**6), 10**6),
        "flag": st.booleans(),
        "extra": extras | st.lists(texts, max_size=2),
    },
)
calls = st.lists(st.tuples(st.sampled_from(sorted(PARAMETERS)), arguments), min_size=1, max_size=2)
every_form = pytest.mark.parametrize("name", FORMS)
# What has a meaning in some form.
SIGNS = st.sampled_from([*"x {}[]\"'\\,:;()<>/=|\n", "</tool_call>", "<tool_call>", "True"])


class Found:
    """The parts of an answer, joined."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self.text = ""
        self.reasoning = ""
        self.calls: list[tuple[str, str, bool]] = []  # name, arguments, whether they are whole
        for part in parts:
            if isinstance(part, TextPart):
                if part.kind is PartKind.REASONING:
                    self.reasoning += part.text
                else:
                    self.text += part.text
            elif isinstance(part, CallMore):
                name, before, whole = self.calls[-1]
                assert not whole, "a whole call has no more"
                self.calls[-1] = (name, before + part.arguments, part.whole)
            else:
                self.calls.append((part.name, part.arguments, part.whole))

    @property
    def whole(self) -> list[tuple[str, Any]]:
        return [(name, json.loads(text)) for name, text, whole in self.calls if whole]

    @property
    def said(self) -> str:
        return self.text + self.reasoning + "".join(f" {n} {given}" for n, given, _ in self.calls)

    def state(self) -> tuple[str, str, list[tuple[str, str, bool]]]:
        return self.text, self.reasoning, self.calls


def read(
    name: str, pieces: Iterable[str], *, thinking: bool = False, hidden: bool = False
) -> Found:
    form = FORMS[name].form
    state = ReasoningState.OPEN if thinking else ReasoningState.FREE
    parser = ReplyParser(THINK, form, thinking=state, parameters=PARAMETERS)
    if hidden:
        parser.hide(parser.marks)
    return Found([*(part for piece in pieces for part in parser.push(piece)), *parser.finish()])


def pieces_of(text: str, places: list[int]) -> list[str]:
    ends = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in pairwise(ends)]


def readable(made: Calls, name: str) -> bool:
    """Return False for what the form's marks, which are special tokens there, cannot be in."""
    return not (name.startswith(("LFM2", "Kimi", "DeepSeek")) and "｜" in str(made))


@every_form
@given(made=calls, places=st.lists(st.integers(0, 900), max_size=20))
@settings(max_examples=20)
def test_calls_are_found_in_any_pieces(name: str, made: Calls, places: list[int]) -> None:
    text = FORMS[name].write(made)
    lead = "" if name == "Llama 3" else "I look.\n"
    for thinking in (False, True):
        before = f"<think>\nHm.\n</think>\n\n{lead}" if thinking else lead
        found = read(name, pieces_of(before + text, places))
        assert found.whole == list(made) and len(found.calls) == len(made)
        assert (found.text, found.reasoning) == (lead.strip(), "Hm." if thinking else "")


@every_form
@given(made=calls, few=st.lists(st.integers(0, 900), max_size=2))
@settings(max_examples=5)
def test_no_cut_makes_another_call(name: str, made: Calls, few: list[int]) -> None:
    text, marks = FORMS[name].write(made), FORMS[name].form.marks
    in_pieces = {place % len(text) for place in few}
    for end in range(len(text)):
        found = read(name, [text[:end]])
        assert found.whole == list(made)[: len(found.whole)], end
        for _, given_out, whole in found.calls:
            if not whole:
                with pytest.raises(ValueError):
                    json.loads(given_out)
        if end in in_pieces:
            assert found.state() == read(name, text[:end]).state(), end
        if not any(mark in str(made) for mark in marks):
            assert not any(mark in found.said for mark in marks), end


@every_form
@given(
    made=calls,
    edits=st.lists(
        st.tuples(st.integers(0, 900), st.integers(0, 12), SIGNS | st.just("")),
        min_size=1,
        max_size=3,
    ),
    places=st.lists(st.integers(0, 900), max_size=20),
    thinking=st.booleans(),
)
@settings(max_examples=40)
def test_malformed_answers_come_to_the_same_in_any_pieces(
    name: str,
    made: Calls,
    edits: list[tuple[int, int, str]],
    places: list[int],
    thinking: bool,
) -> None:
    text = FORMS[name].write(made)
    for place, size, sign in edits:
        at = place % (len(text) + 1)
        text = text[:at] + sign + text[at + size :]
    found = read(name, [text], thinking=thinking)
    for pieces in (text, pieces_of(text, places)):
        assert found.state() == read(name, pieces, thinking=thinking).state()
    for _, given_out, whole in found.calls:
        if whole:
            assert isinstance(json.loads(given_out), dict)
        else:
            with pytest.raises(ValueError):
                json.loads(given_out)
    marks = FORMS[name].form.marks
    hidden = read(name, [text], thinking=thinking, hidden=True)
    any_mark = "|".join(map(re.escape, (*marks, "<think>", "</think>")))
    bare, joined = (re.sub(any_mark, between, text) for between in (" ", ""))
    if not any(mark in joined for mark in marks):  # no text beside marks is one
        assert not any(mark in hidden.text + hidden.reasoning for mark in marks)
    for word in re.findall("alpha|bravo|build|weather", bare):
        assert word in found.said and word in hidden.said


@every_form
@given(made=calls, places=st.lists(st.integers(0, 900), max_size=20))
@settings(max_examples=10)
def test_a_call_within_reasoning_counts_once_it_is_whole(
    name: str, made: Calls, places: list[int]
) -> None:
    if name == "Llama 3":
        return  # its calls begin the answer
    call = FORMS[name].write(made[:1])
    found = read(name, pieces_of(f"Hm.\n{call}", places), thinking=True)
    assert (found.whole, found.reasoning, found.text) == (list(made[:1]), "Hm.", "")
    other = read(
        name, pieces_of(f"Hm.\n{call.replace(made[0][0], 'other')}", places), thinking=True
    )
    assert not other.calls and not other.text and other.reasoning.startswith("Hm.")
    if name != "LFM2.5":
        half = call[: len(call) // 3]
        cut = read(name, pieces_of(f"Hm.\n{half}</think>\n\nYes.", places), thinking=True)
        assert not cut.whole and cut.text == "Yes."
