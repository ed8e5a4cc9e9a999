"""Forced calls behind reasoning: any pieces and every cut of an answer."""

import json
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text.test_calls_of_forms import Found, arguments, pieces_of
from text.written_calls import PARAMETERS

from baton.text.reasoned_calls import ReasonedCallParser
from baton.text.reasoning import ReasoningState, find_reasoning_format
from baton.text.reply_parser import ReplyParser

THINK = find_reasoning_format("<think></think>")
GRANITE = find_reasoning_format("Here is my response:")
THOUGHTS = ("Hm.", '[{"name":"run","arguments":{}}]', "<think> again", "</thin k>", "<tool_call>{}")
thoughts = st.lists(st.sampled_from(THOUGHTS), max_size=3).map(
    lambda some: " ".join(["So.", *some])
)
calls = st.lists(st.tuples(st.sampled_from(sorted(PARAMETERS)), arguments), min_size=1, max_size=2)


def read(pieces: Iterable[str], form_name: str, opened: bool, separate: bool = True) -> Found:
    form = THINK if form_name == "think" else GRANITE
    state = ReasoningState.OPEN if opened else ReasoningState.FREE
    parser = ReasonedCallParser(ReplyParser(form, None, thinking=state), separate=separate)
    return Found([*(part for piece in pieces for part in parser.push(piece)), *parser.finish()])


@pytest.mark.parametrize("opened", [True, False])
@pytest.mark.parametrize("form_name", ["think", "granite"])
@given(thought=thoughts, made=calls, places=st.lists(st.integers(0, 900), max_size=20))
@settings(max_examples=30)
def test_any_pieces_and_every_cut(
    form_name: str,
    opened: bool,
    thought: str,
    made: list,
    places: list[int],  # type: ignore[type-arg]
) -> None:
    form = THINK if form_name == "think" else GRANITE
    assert form is not None
    listed = json.dumps([{"name": name, "arguments": given} for name, given in made])
    listed = listed.replace('"name": ', '"name":').replace(', "arguments": ', ',"arguments":')
    lead = "" if opened else form.begin
    text = f"{lead}{thought}\n{form.end}\n\n{listed}"
    found = read(pieces_of(text, places), form_name, opened)
    assert (found.text, found.reasoning, found.whole) == ("", thought, list(made))
    joined = read([text], form_name, opened, separate=False)
    assert (joined.text, joined.reasoning, joined.whole) == (thought, "", list(made))
    begins = text.index(form.end) + len(form.end)
    for cut in range(len(text)):
        short = read([text[:cut]], form_name, opened)
        assert short.state() == read(pieces_of(text[:cut], places), form_name, opened).state()
        if cut >= begins:
            assert short.reasoning == thought
        if cut < begins:
            assert not short.calls
        assert short.whole == list(made)[: len(short.whole)]
        assert all(arguments for _, arguments, whole in short.calls if not whole)
