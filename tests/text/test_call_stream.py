"""Calls of tools whose arguments are given out while the model writes them."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.text.json_scanner import JsonScanner
from baton.text.reply_parser import Part, PartKind, ReplyParser, TextPart
from baton.text.tool_calls import CallMore, ToolCall, ToolFormat, find_tool_format

FORMS = {
    name: form
    for name, mark in {
        "hermes": "<tool_call>",
        "nemotron": "<TOOLCALL>",
        "granite": "<|tool_call|>",
        "deepseek": "<｜tool▁calls▁begin｜>",
        "deepseek v3": "<｜tool▁calls▁begin｜>",
    }.items()
    if (form := find_tool_format(mark)) is not None
}
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["</tool_call>", "<tool_call>", "]</TOOLCALL>", "}", '"', "\\", "\n", "```"])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
arguments = st.dictionaries(st.text(max_size=6), values, max_size=4)
calls = st.lists(
    st.tuples(st.sampled_from(["weather", "f", "a-b_c"]), arguments), min_size=1, max_size=3
)


def written(name: str, given: list[tuple[str, dict[str, Any]]], indent: int | None) -> str:
    """Write calls as models of a form do."""
    form = FORMS[name]
    texts = [json.dumps(each, indent=indent, ensure_ascii=False) for _, each in given]
    if name == "deepseek":
        parts = [
            f"<｜tool▁call▁begin｜>{called}<｜tool▁sep｜>{text}<｜tool▁call▁end｜>"
            for (called, _), text in zip(given, texts, strict=True)
        ]
        return f"{form.begin}{''.join(parts)}{form.end}"
    if name == "deepseek v3":
        parts = [
            f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{called}\n```json\n{text}\n```<｜tool▁call▁end｜>"
            for (called, _), text in zip(given, texts, strict=True)
        ]
        joined = "\n".join(parts)
        return f"{form.begin}{joined}{form.end}"
    bodies = [
        f'{{"name": {json.dumps(called)}, "arguments": {text}}}'
        for (called, _), text in zip(given, texts, strict=True)
    ]
    if name == "hermes":
        return "\n".join(f"{form.begin}\n{body}\n{form.end}" for body in bodies)
    return f"{form.begin}[{', '.join(bodies)}]{form.end}"


def pieces_of(text: str, form: ToolFormat, places: list[int]) -> list[list[Part]]:
    """Return what each piece of the text adds, and last what the end does."""
    parser = ReplyParser(None, form)
    ends = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    found = [parser.push(text[a:b]) for a, b in pairwise(ends)]
    return [*found, parser.finish()]


def calls_in(parts: list[Part]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for part in parts:
        assert not isinstance(part, TextPart), part
        if isinstance(part, CallMore):
            found[-1] = (found[-1][0], found[-1][1] + part.arguments)
        else:
            found.append((part.name, part.arguments))
    return found


@pytest.mark.parametrize("name", FORMS)
@given(made=calls, indent=st.sampled_from([None, 1]), places=st.lists(st.integers(0, 500)))
def test_any_calls_in_any_pieces(
    name: str, made: list[tuple[str, dict[str, Any]]], indent: int | None, places: list[int]
) -> None:
    if name.startswith("deepseek") and "｜" in str(made):
        return  # its marks are special tokens, which no string can have
    text = written(name, made, indent)
    parts = [part for piece in pieces_of(text, FORMS[name], places) for part in piece]
    assert [(called, json.loads(text)) for called, text in calls_in(parts)] == made


@pytest.mark.parametrize("name", FORMS)
def test_at_every_position_what_came_is_the_beginning_of_what_is_to_come(name: str) -> None:
    made = [
        ("weather", {"city": 'Os"lo}', "days": [3, -1.5e3, True, None], "a": {"b": "\\u00e9"}}),
        ("f", {}),
    ]
    text = written(name, made, None)
    whole = calls_in([part for piece in pieces_of(text, FORMS[name], []) for part in piece])
    for at in range(1, len(text)):
        before, after, end = pieces_of(text, FORMS[name], [at])
        first = calls_in(before)
        for known, (called, given_out) in zip(first, whole, strict=False):
            assert known[0] == called
            head, tail = json.loads(given_out), known[1]
            assert json.dumps(head, ensure_ascii=False).startswith(tail), (at, known)
        assert [(c, json.loads(t)) for c, t in calls_in([*before, *after, *end])] == made


@pytest.mark.parametrize("name", FORMS)
def test_arguments_come_as_they_are_written(name: str) -> None:
    text = written(name, [("weather", {"text": "a" * 400})], None)
    pieces = [
        part for piece in pieces_of(text, FORMS[name], list(range(len(text)))) for part in piece
    ]
    assert isinstance(pieces[0], ToolCall) and pieces[0].arguments in ("", "{")
    assert len(pieces) > 400


@pytest.mark.parametrize(
    ("value", "sure"),
    [("NaN}", '{"x": '), ("1e999}", '{"x": '), ("01}", '{"x": '), ("tru}", '{"x": '),
     ("[1 2]", '{"x": [1 '), ('"\\q"}', '{"x": "\\'), ('"\n"', '{"x": "'), ("}", '{"x": ')],
)  # fmt: skip
def test_what_turns_out_to_be_no_json_is_content_from_there_on(value: str, sure: str) -> None:
    written = f'{{"name": "a", "arguments": {{"x": {value}'
    text = f"<tool_call>{written}</tool_call>"
    for places in ([], list(range(len(text)))):
        name, given_out, content = "", "", ""
        for piece in pieces_of(text, FORMS["hermes"], places):
            for part in piece:
                match part:
                    case TextPart(kind, said):
                        assert kind is PartKind.CONTENT
                        content += said
                    case ToolCall() | CallMore():
                        assert not content and not part.whole
                        name = part.name if isinstance(part, ToolCall) else name
                        given_out += part.arguments
        assert (name, given_out) == ("a", sure)
        assert written.endswith(sure + content)


@pytest.mark.parametrize(
    "body",
    [
        '{"arguments": {"x": 1}, "name": "a"}',
        '{"id": 5, "name": "a", "arguments": {"x": 1}}',
        '{"name": "a", "arguments": "{\\"x\\": 1}"}',
        '{"name": "a", "parameters": {"x": 1}}',
        '{"name": "a", "arguments": {"x": 1}, "id": "b}"}',
    ],
)
def test_calls_in_other_orders_are_the_same_in_one_piece_and_in_many(body: str) -> None:
    text = f"<tool_call>\n{body}\n</tool_call>"
    for places in ([], list(range(len(text)))):
        parts = [part for piece in pieces_of(text, FORMS["hermes"], places) for part in piece]
        assert [(c, json.loads(t)) for c, t in calls_in(parts)] == [("a", {"x": 1})]


@pytest.mark.parametrize("places", [[], list(range(200))], ids=["whole", "each"])
def test_an_answer_that_is_cut_off_keeps_what_it_had_of_a_call(places: list[int]) -> None:
    text = '<tool_call>{"name": "a", "arguments": {"x": "y", "n": 12'
    parts = [part for piece in pieces_of(text, FORMS["hermes"], places) for part in piece]
    assert calls_in(parts) == [("a", '{"x": "y", "n": 12')]


def test_text_behind_a_call_is_content() -> None:
    text = '<tool_call>{"name": "a", "arguments": {}}</tool_call> \n Done.'
    for places in ([], list(range(len(text)))):
        parts = [part for piece in pieces_of(text, FORMS["hermes"], places) for part in piece]
        texts = [part for part in parts if isinstance(part, TextPart)]
        assert isinstance(parts[0], ToolCall) and isinstance(parts[-1], TextPart)
        assert "".join(part.text for part in texts) == "Done."


@given(value=arguments | st.lists(values, max_size=3), indent=st.sampled_from([None, 2]))
def test_the_scanner_takes_all_json(value: Any, indent: int | None) -> None:
    scanner, text = JsonScanner(), json.dumps(value, indent=indent)
    for number, char in enumerate(text):
        scanner.push(char)
        assert scanner.done == (number == len(text) - 1)


@given(text=st.text('{}[]:,"\\ua01-+.eE truefalsn', min_size=1, max_size=12))
def test_the_scanner_takes_nothing_else(text: str) -> None:
    text = "[" + text
    scanner = JsonScanner()
    try:
        for char in text:
            scanner.push(char)
        took = scanner.done
    except ValueError:
        took = False
    try:
        json.loads(text)
    except ValueError:
        assert not took
    else:
        assert took


def test_the_scanner_has_bounds() -> None:
    for text in ("[" * 1000, "[" + "1" * 10_000, "[NaN]", "[1e999]", "5"):
        with pytest.raises(ValueError):
            scanner = JsonScanner()
            for char in text:
                scanner.push(char)
