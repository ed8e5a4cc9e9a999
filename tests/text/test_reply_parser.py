"""Thoughts, content and calls of tools, in any grouping of the text that they come in."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.text.reasoning import ReasoningState, find_reasoning_format
from baton.text.reply_parser import Part, PartKind, ReplyParser, TextPart
from baton.text.tool_calls import CallMore, ToolCall, find_tool_format, parameters_of

THINK = find_reasoning_format("{{ '<think>' }} ... </think>")
GRANITE = find_reasoning_format("Here is my thought process: ... Here is my response:")
HERMES = find_tool_format("<tool_call> ... </tool_call>")
NEMOTRON = find_tool_format("<TOOLCALL>[...]</TOOLCALL>")
GRANITE_TOOLS = find_tool_format("<|tool_call|>")
DEEPSEEK = find_tool_format("<｜tool▁calls▁begin｜>")
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            },
        },
    }
]
OSLO = {"city": "Oslo", "days": 3}
JSON_CALL = json.dumps({"name": "weather", "arguments": OSLO})
TAG_CALL = (
    "<function=weather>\n<parameter=city>\nOslo\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>"
)
V3_CALL = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
    f"{json.dumps(OSLO)}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
V31_CALL = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>"
    f"{json.dumps(OSLO)}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
CALLS = [
    (HERMES, f"<tool_call>\n{JSON_CALL}\n</tool_call>"),
    (HERMES, f"<tool_call>\n{TAG_CALL}\n</tool_call>"),
    (NEMOTRON, f"<TOOLCALL>[{JSON_CALL}]</TOOLCALL>"),
    (GRANITE_TOOLS, f"<|tool_call|>[{JSON_CALL}]"),
    (DEEPSEEK, V3_CALL),
    (DEEPSEEK, V31_CALL),
]


def joined(parser: ReplyParser, pieces: list[str]) -> list[tuple[str, object]]:
    """The parts, texts of one kind and pieces of one call joined."""
    parts = [part for piece in pieces for part in parser.push(piece)] + parser.finish()
    return [
        (kind, text if isinstance(kind, PartKind) else json.loads(text))
        for kind, text in joined_parts(parts)
    ]


def joined_parts(parts: list[Part]) -> list[tuple[str, str]]:
    """Texts and calls by name, with their arguments as they were written."""
    found: list[tuple[str, str]] = []
    for part in parts:
        if isinstance(part, ToolCall):
            found.append((part.name, part.arguments))
        elif isinstance(part, CallMore):
            name, arguments = found[-1]
            assert not isinstance(name, PartKind)
            found[-1] = (name, arguments + part.arguments)
        elif found and found[-1][0] == part.kind:
            found[-1] = (part.kind, found[-1][1] + part.text)
        else:
            found.append((part.kind, part.text))
    return found


def cut(text: str, places: list[int]) -> list[str]:
    ends = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in pairwise(ends)]


places = st.lists(st.integers(0, 500), max_size=30)


@pytest.mark.parametrize(("form", "written"), CALLS)
@given(places=places)
def test_thoughts_content_and_a_call(form, written, places) -> None:
    text = f"<think>\nWhere?  <tool\n</think>\n\nI look.\n{written}"
    parser = ReplyParser(THINK, form, parameters=parameters_of(TOOLS))
    assert joined(parser, cut(text, places)) == [
        (PartKind.REASONING, "Where?  <tool"),
        (PartKind.CONTENT, "I look."),
        ("weather", OSLO),
    ]


@given(places=places)
def test_thoughts_that_the_prompt_began(places) -> None:
    parser = ReplyParser(THINK, None, thinking=ReasoningState.OPEN)
    assert joined(parser, cut("a < b\n</think>\n\nYes. </thin", places)) == [
        (PartKind.REASONING, "a < b"),
        (PartKind.CONTENT, "Yes. </thin"),
    ]


def test_thoughts_that_never_end_are_thoughts() -> None:
    assert joined(ReplyParser(THINK, None, thinking=ReasoningState.OPEN), ["so ", "on"]) == [
        (PartKind.REASONING, "so on")
    ]


@given(places=places)
def test_granite_says_what_it_does(places) -> None:
    text = "Here is my thought process: hm. Here is my response:\n\nNo."
    assert joined(ReplyParser(GRANITE, None), cut(text, places)) == [
        (PartKind.REASONING, "hm."),
        (PartKind.CONTENT, "No."),
    ]


@given(text=st.text("<think>/tool_cal \n", max_size=60), places=places)
def test_an_answer_without_formats_is_left_as_it_is(text, places) -> None:
    assert joined(ReplyParser(None, None), cut(text, places)) == (
        [(PartKind.CONTENT, text)] if text else []
    )


@given(places=places)
def test_several_calls_in_a_row(places) -> None:
    text = f"<tool_call>{JSON_CALL}</tool_call>\n<tool_call>{TAG_CALL}</tool_call>"
    parser = ReplyParser(None, HERMES, parameters=parameters_of(TOOLS))
    assert joined(parser, cut(text, places)) == [("weather", OSLO)] * 2
    both = f"<TOOLCALL>[{JSON_CALL}, {JSON_CALL}]</TOOLCALL>"
    assert joined(ReplyParser(None, NEMOTRON), cut(both, places)) == [("weather", OSLO)] * 2


@pytest.mark.parametrize(
    "body",
    ["{", '{"name": 5}', '{"name": "a", "arguments": [1]}', "<function=a", "[" * 100_000],
    ids=range(5),
)
def test_what_is_no_call_is_content_without_its_marks(body: str) -> None:
    text = f"<tool_call>{body}</tool_call>"
    assert joined(ReplyParser(None, HERMES), [text]) == [(PartKind.CONTENT, body)]
    open_ended = f"<tool_call>{body}"
    assert joined(ReplyParser(None, HERMES), [open_ended]) == [(PartKind.CONTENT, body)]


@pytest.mark.parametrize("number", ["NaN", "1e999"])
def test_arguments_that_turn_out_to_be_no_json_make_no_whole_call(number: str) -> None:
    text = f'<tool_call>{{"name": "a", "arguments": {{"x": {number}}}}}</tool_call>'
    parts = ReplyParser(None, HERMES).push(text)
    assert not any(part.whole for part in parts if not isinstance(part, TextPart))
    assert joined_parts(parts) == [("a", '{"x": '), (PartKind.CONTENT, f"{number}}}}}")]


def test_a_value_without_a_known_type_is_json_where_it_can_be() -> None:
    written = (
        "<tool_call><function=f><parameter=a>7</parameter><parameter=b>x y</parameter>"
        "<parameter=c>NaN</parameter></function></tool_call>"
    )
    expected = [("f", {"a": 7, "b": "x y", "c": "NaN"})]
    assert joined(ReplyParser(None, HERMES), [written]) == expected
    for schemas in ({"a": True, "b": False}, {"b": ["string"]}, [1], True, None):
        tool = {"function": {"name": "f", "parameters": {"properties": schemas}}}
        parser = ReplyParser(None, HERMES, parameters=parameters_of([tool]))
        assert joined(parser, [written]) == expected, schemas


def test_a_model_that_repeats_a_mark_without_end_is_read_in_one_pass() -> None:
    """Parsing takes time linear in the text: a search from each mark to the end takes minutes
    here."""
    body = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>" * 20_000
    text = f"<｜tool▁calls▁begin｜>{body}"
    assert joined(ReplyParser(None, DEEPSEEK), [text]) == [(PartKind.CONTENT, "function" * 20_000)]
    for mark in ("<tool_call>", "<tool_call>{", "<tool_call><function=f>"):
        for state in (ReasoningState.FREE, ReasoningState.OPEN):
            thinking = state is ReasoningState.OPEN
            parser = ReplyParser(THINK, HERMES, thinking=state)
            begins = mark != "<tool_call>" and not thinking
            shown = mark.removeprefix("<tool_call>") if begins else mark
            kind = PartKind.REASONING if thinking else PartKind.CONTENT
            assert joined(parser, [f"{mark * 20_000} x"]) == [(kind, f"{shown * 20_000} x")]


def test_certain_text_is_not_kept_back() -> None:
    parser = ReplyParser(THINK, HERMES)
    assert parser.push("Well") == [TextPart(PartKind.CONTENT, "Well")]
    assert parser.push(" <th") == [TextPart(PartKind.CONTENT, " <th")]
    assert parser.push("e <tool_") == [TextPart(PartKind.CONTENT, "e")]
    assert parser.push("box>") == [TextPart(PartKind.CONTENT, " <tool_box>")]
    parser = ReplyParser(THINK, HERMES)
    assert parser.push("\n<th") == []
    assert parser.push("e end>") == [TextPart(PartKind.CONTENT, "\n<the end>")]


@given(places=places)
@pytest.mark.parametrize("state", ReasoningState)
def test_reasoning_begins_nowhere_but_where_the_answer_does(state, places) -> None:
    text = "The <think> tag opens thoughts, </think> ends them, <think> again."
    expected = [(PartKind.CONTENT, text)]
    if state is ReasoningState.OPEN:
        expected = [
            (PartKind.REASONING, "The <think> tag opens thoughts,"),
            (PartKind.CONTENT, "ends them, <think> again."),
        ]
    assert joined(ReplyParser(THINK, HERMES, thinking=state), cut(text, places)) == expected


@given(places=places)
@pytest.mark.parametrize("state", ReasoningState)
def test_a_mark_at_the_beginning_opens_reasoning_unless_the_template_closed_it(
    state, places
) -> None:
    text = "\n<think>\nhm</think>\n\nYes"
    closed = [(PartKind.CONTENT, text)]
    free = [(PartKind.REASONING, "hm"), (PartKind.CONTENT, "Yes")]
    parser = ReplyParser(THINK, HERMES, thinking=state)
    assert joined(parser, cut(text, places)) == (closed if state is ReasoningState.CLOSED else free)


@pytest.mark.parametrize(
    ("opening", "state"),
    [
        ("assistant\n<think>\n", ReasoningState.OPEN),
        ("assistant\n<think>\n\n</think>\n\n", ReasoningState.CLOSED),
        ("assistant</think>", ReasoningState.CLOSED),
        ("assistant\n", ReasoningState.FREE),
        ("", ReasoningState.FREE),
    ],
)
def test_the_state_of_thoughts_behind_what_opens_a_turn(
    opening: str, state: ReasoningState
) -> None:
    assert THINK is not None
    assert THINK.thinking_after(opening) is state


def test_a_template_without_marks_teaches_nothing() -> None:
    assert find_tool_format("{{ messages }}") is None
    assert find_reasoning_format("{{ messages }}") is None
