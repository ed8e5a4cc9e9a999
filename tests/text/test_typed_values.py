"""Values of parameters that models write as plain text, by the schemas of their tools."""

from typing import Any

import pytest

from baton.text.reply_parser import ReplyParser
from baton.text.tool_calls import ToolCall, find_tool_format, parameters_of, read_json
from baton.text.typed_values import typed_value

FORM = find_tool_format("<tool_call> <function=name>")
NULLABLE: dict[str, Any] = {"type": ["string", "null"]}
EITHER: dict[str, Any] = {"anyOf": [{"type": "string"}, {"type": "null"}]}
LEVEL: dict[str, Any] = {"$ref": "#/$defs/Level"}


def typed(schema: Any, text: str) -> Any:
    defs = {"Level": {"type": "string", "enum": ["1", "2", "123"]}, "a/b": {"type": "integer"}}
    return typed_value(text, "p", {"properties": {"p": schema}, "$defs": defs})


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "123", "123"),
        ({"type": "string"}, " a\nb ", " a\nb "),
        (NULLABLE, "123", "123"),
        (EITHER, "123", "123"),
        (NULLABLE, "null", None),
        ({"enum": ["true", "false"]}, "true", "true"),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": [1, 2]}, "1", 1),
        ({"enum": [True, None]}, "True", True),
        ({"enum": ["a", None]}, "None", None),
        ({"const": "5"}, "5", "5"),
        ({"const": 5}, "5", 5),
        (LEVEL, "123", "123"),
        ({"$ref": "#/$defs/a~1b"}, "7", 7),
        ({"$ref": "#/$defs/none"}, "7", 7),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "False", False),
        ({"type": "boolean"}, "true", True),
        ({"type": "object"}, "{'a': 1, 'b': None}", {"a": 1, "b": None}),
        ({"type": "object"}, '{"a": true}', {"a": True}),
        ({"type": "array"}, "['a', (1, 2),]", ["a", [1, 2]]),
        ({"type": ["integer", "null"]}, "None", None),
        ({"type": ["integer", "string"]}, "12", 12),
        ({"type": ["integer", "string"]}, "12a", "12a"),
        ({"type": "integer"}, "1.0", 1),
        ({"type": "integer"}, "1e3", 1000),
        ({"type": "integer"}, "+5", 5),
        ({"type": "number"}, ".5", 0.5),
        ({"type": "number"}, "+5", 5),
        ({"type": "number"}, "1e999", "1e999"),
        ({"type": "integer"}, "many", "many"),
        ({"oneOf": [{"type": "object"}, {"type": "string"}]}, '{"a": 1}', {"a": 1}),
        ({"allOf": [LEVEL], "description": "x"}, "1", "1"),
        ({}, "7", 7),
        (True, "x y", "x y"),
        ({}, "NaN", "NaN"),
        ({}, "007", "007"),
        ({}, "True", True),
    ],
)
def test_the_schema_gives_the_type(schema: Any, text: str, value: Any) -> None:
    found = typed(schema, text)
    assert found == value and type(found) is type(value)


def test_references_in_a_circle_end() -> None:
    circle = {"anyOf": [{"$ref": "#/properties/p"}, {"$ref": "#/properties/p"}]}
    assert typed(circle, "7") == 7


@pytest.mark.parametrize("last", ["#/definitions/Arguments", "#/definitions/none", "#/$ref", "#"])
def test_the_schema_of_all_parameters_may_be_a_reference(last: str) -> None:
    parameters = {
        "$ref": "#/definitions/Again",
        "definitions": {
            "Again": {"$ref": last},
            "Arguments": {"properties": {"p": {"type": "string"}}},
        },
    }
    assert typed_value("7", "p", parameters) == ("7" if last.endswith("Arguments") else 7)


@pytest.mark.parametrize("last", ["</parameter>\n", ""])
def test_an_end_tag_may_be_left_out_before_what_follows_a_value(last: str) -> None:
    keys = {"p": {"type": "string"}, "n": {"type": "integer"}}
    text = (
        "<tool_call>\n<function=f>\n<parameter=p>\nx\n<parameter=p>\n<parameter=q>\n"
        f"<parameter=n>\n7\n{last}</function>\n</tool_call>"
    )
    tools = [{"function": {"name": "f", "parameters": {"properties": keys}}}]
    for pieces in ([text], list(text)):
        parser = ReplyParser(None, FORM, parameters=parameters_of(tools))
        (call,) = [part for piece in pieces for part in parser.push(piece)] + parser.finish()
        assert isinstance(call, ToolCall) and call.whole
        assert read_json(call.arguments) == {"p": "x\n<parameter=p>\n<parameter=q>", "n": 7}


@pytest.mark.parametrize(
    "value",
    ["a </parameter> b", "a </function> b", "a </tool_call> b", "a <parameter=x> b", "", "\nx\n"],
)
def test_a_value_may_hold_the_marks_of_calls(value: str) -> None:
    schema = {"type": "object", "properties": {"p": {"type": "string"}, "x": {"type": "string"}}}
    tools = [{"function": {"name": "f", "parameters": schema}}]
    text = (
        f"<tool_call>\n<function=f >\n<parameter=p >\n{value}\n</parameter>\n</function>\n"
        "</tool_call>"
    )
    for pieces in ([text], list(text)):
        parser = ReplyParser(None, FORM, parameters=parameters_of(tools))
        found = [part for piece in pieces for part in parser.push(piece)] + parser.finish()
        (call,) = found
        assert isinstance(call, ToolCall) and call.whole
        assert (call.name, read_json(call.arguments)) == ("f", {"p": value})
