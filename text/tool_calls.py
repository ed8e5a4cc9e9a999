"""The forms in which models write tool calls, and their conversion to OpenAI's.

Sources: the chat templates of Qwen3 and Qwen3-Coder, Nemotron Nano 2 and 3, Granite 3 and 4, and
DeepSeek V3, V3.1 and R1.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NoReturn

Properties = Mapping[str, Mapping[str, Any]]
"""The JSON schemas of each tool's parameters, by tool and by name: objects, or true or false."""


@dataclass(frozen=True)
class ToolCall:
    name: str
    arguments: str  # a JSON object, or its beginning: the rest comes as `CallMore`


@dataclass(frozen=True)
class CallMore:
    """More of the arguments of the last call."""

    arguments: str


class JsonInside(Enum):
    """The JSON that a grammar may write between a format's marks."""

    CALL = auto()  # one call, on a line of its own
    CALLS = auto()  # a list of calls
    NONE = auto()  # what stands there is more than JSON


@dataclass(frozen=True)
class ToolFormat:
    """The marks round one call, or round all calls, of an answer."""

    begin: str
    end: str
    read: Callable[[str, Properties], list[ToolCall]]
    inside: JsonInside


def properties_of(tools: Sequence[Mapping[str, Any]]) -> Properties:
    """Return each tool's parameters by the tool's name, from OpenAI's list of tools."""
    functions = [tool.get("function") or {} for tool in tools]
    found = {
        str(function.get("name")): (function.get("parameters") or {}).get("properties")
        for function in functions
    }
    return {name: each if isinstance(each, dict) else {} for name, each in found.items()}


def find_tool_format(template: str) -> ToolFormat | None:
    """Return the format whose marks the chat template has, or None."""
    return next((form for form in _FORMATS if form.begin in template), None)


def _read_json(body: str, _: Properties) -> list[ToolCall]:
    return read_calls(body)


def read_calls(body: str) -> list[ToolCall]:
    """Read one call or a list of calls: {"name": ..., "arguments": {...}}. Raises ValueError."""
    found = _loads(body)
    calls = found if isinstance(found, list) else [found]
    return [_call(entry) for entry in calls]


def _call(entry: Any) -> ToolCall:
    name = entry.get("name") if isinstance(entry, dict) else None
    if not isinstance(name, str) or not is_unicode(name):
        raise ValueError("a call needs a name")
    arguments = entry.get("arguments", entry.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = _loads(arguments)
    if not isinstance(arguments, dict):
        raise ValueError("a call's arguments are an object")
    return ToolCall(name, _dumps(arguments))


def _loads(text: str) -> Any:
    """Parse JSON. Raises ValueError, also for brackets that a model opens without end, and for
    Python's NaN."""
    try:
        return json.loads(text, parse_constant=_no_number)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def _dumps(arguments: Mapping[str, Any]) -> str:
    """Write JSON. Raises ValueError for numbers that JSON lacks."""
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    # Half of a surrogate pair, which JSON can escape, has no UTF-8.
    return text if is_unicode(text) else json.dumps(arguments, allow_nan=False)


def is_unicode(text: str) -> bool:
    """Return False for a text with half of a surrogate pair, which UTF-8 cannot have."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_FUNCTION = re.compile(r"<function=([^>\s]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(
    r"<parameter=([^>\s]+)>\n?(.*?)\n?(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL
)


def _read_json_or_tags(body: str, properties: Properties) -> list[ToolCall]:
    """Read Hermes' JSON, or Qwen3-Coder's
    <function=name><parameter=key>value</parameter></function>."""
    if not body.lstrip().startswith("<function="):
        return _read_json(body, properties)
    calls = []
    for name, inside in _FUNCTION.findall(body):
        types = properties.get(name, {})
        given = _PARAMETER.findall(inside)
        arguments = {key: _typed(text, types.get(key)) for key, text in given}
        calls.append(ToolCall(name, _dumps(arguments)))
    if not calls:
        raise ValueError("no <function=...> has an end")
    return calls


def _typed(text: str, schema: Any) -> Any:
    """Give a tag's text its type: a string stays one, the rest is JSON where it can be."""
    if isinstance(schema, dict) and schema.get("type") == "string":
        return text
    try:
        return _loads(text)
    except ValueError:
        return text


def _read_deepseek(body: str, _: Properties) -> list[ToolCall]:
    """V3.1: name, mark, arguments. V3 and R1: "function", mark, name, and the arguments fenced."""
    calls = []
    for part in body.split("<｜tool▁call▁begin｜>")[1:]:
        whole, end, _after = part.partition("<｜tool▁call▁end｜>")
        name, mark, arguments = whole.partition("<｜tool▁sep｜>")
        if name == "function" and "```json" in arguments:
            name, _fence, arguments = arguments.partition("```json")
            arguments = arguments.rpartition("```")[0]
        if end and mark:
            calls.append(_call({"name": name.strip(), "arguments": arguments.strip()}))
    if not calls:
        raise ValueError("no call between the marks")
    return calls


_FORMATS = (
    ToolFormat("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", _read_deepseek, JsonInside.NONE),
    ToolFormat("<TOOLCALL>", "</TOOLCALL>", _read_json, JsonInside.CALLS),
    ToolFormat("<|tool_call|>", "", _read_json, JsonInside.CALLS),
    ToolFormat("<tool_call>", "</tool_call>", _read_json_or_tags, JsonInside.CALL),
)
