"""The forms in which models write tool calls, and the calls that are found.

Sources: the chat templates of Qwen3, Qwen3-Coder and Qwen3.5, Nemotron Nano 2 and 3, Granite 3 and
4, LFM2 and LFM2.5, Kimi K2, Llama 3, DeepSeek V3, V3.1 and R1, and Falcon-H1.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from math import isfinite
from typing import Any, NoReturn

Parameters = Mapping[str, Mapping[str, Any]]
"""The JSON schema of each offered tool's arguments, by the tool's name."""


@dataclass(frozen=True)
class ToolCall:
    name: str
    arguments: str  # a JSON object, or its beginning: the rest comes as `CallMore`
    whole: bool = False  # the arguments are all there


@dataclass(frozen=True)
class CallMore:
    """More of the arguments of the last call."""

    arguments: str
    whole: bool = False  # the arguments are all there


class CallStyle(Enum):
    """The ways of writing calls between marks."""

    JSON = auto()  # {"name": ..., "arguments": {...}}, or a list of them
    TAGS = auto()  # <function=name><parameter=key>value</parameter></function>
    DEEPSEEK = auto()  # marks round the name and the JSON of the arguments
    KIMI = auto()  # other marks, and the number of the call behind its name
    PYTHON = auto()  # [name(key=value, ...), ...]


@dataclass(frozen=True)
class ToolFormat:
    """The marks round one call, or round all calls, of an answer."""

    begin: str
    end: str
    styles: tuple[CallStyle, ...]  # that are read; the first is what the template teaches
    together: bool = False  # the marks stand round all calls, not round each
    inner: tuple[str, ...] = ()  # marks between those two
    fenced: bool = False  # arguments stand in a fence, as code in Markdown does
    bare: bool = False  # a call may begin without its mark
    taught_by: tuple[str, ...] = ()  # texts that a template has all of; (): the first mark

    @property
    def marks(self) -> tuple[str, ...]:
        """Return the texts that may be special tokens."""
        return tuple(mark for mark in (self.begin, self.end, *self.inner) if mark)

    def is_taught_by(self, template: str) -> bool:
        """Return whether this is the form of a chat template's model."""
        return all(text in template for text in self.taught_by or (self.begin,))


FUNCTION = "<function="
"""The beginning of a call in tags."""
HERMES = ToolFormat("<tool_call>", "</tool_call>", (CallStyle.JSON, CallStyle.TAGS))
TAGS = ToolFormat(
    "<tool_call>", "</tool_call>", (CallStyle.TAGS, CallStyle.JSON),
    bare=True, taught_by=("<tool_call>", FUNCTION),
)  # fmt: skip
NEMOTRON = ToolFormat("<TOOLCALL>", "</TOOLCALL>", (CallStyle.JSON,), together=True)
GRANITE = ToolFormat("<|tool_call|>", "", (CallStyle.JSON,), together=True)
DEEPSEEK = ToolFormat(
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", (CallStyle.DEEPSEEK,), together=True,
    inner=("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
)  # fmt: skip
DEEPSEEK_FENCED = replace(DEEPSEEK, fenced=True, taught_by=(DEEPSEEK.begin, "```json"))
KIMI = ToolFormat(
    "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", (CallStyle.KIMI,),
    together=True,
    inner=("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
)  # fmt: skip
LFM2 = ToolFormat(
    "<|tool_call_start|>", "<|tool_call_end|>", (CallStyle.PYTHON, CallStyle.JSON), together=True
)
# Liquid's own template of LFM2 shows tools, but no calls.
_LFM2_LIST = replace(LFM2, taught_by=("<|tool_list_start|>",))
LLAMA3 = ToolFormat(
    "<|python_tag|>", "", (CallStyle.JSON,),
    bare=True, taught_by=("<|start_header_id|>", '"parameters": '),
)  # fmt: skip
# The more particular ones first.
_FORMATS = (
    DEEPSEEK_FENCED,
    DEEPSEEK,
    KIMI,
    NEMOTRON,
    GRANITE,
    LFM2,
    _LFM2_LIST,
    TAGS,
    HERMES,
    LLAMA3,
)


_BESIDE_NAME = {"name", "id", "type"}
"""Keys of a call without arguments."""


def find_tool_format(template: str) -> ToolFormat | None:
    """Return the form of calls that a chat template teaches, or None."""
    return next((form for form in _FORMATS if form.is_taught_by(template)), None)


def parameters_of(tools: Sequence[Mapping[str, Any]]) -> Parameters:
    """Return the schema of each tool's arguments by the tool's name, from OpenAI's list of
    tools."""
    functions = [tool.get("function") or {} for tool in tools]
    found = {str(function.get("name")): function.get("parameters") for function in functions}
    return {name: each if isinstance(each, dict) else {} for name, each in found.items()}


def read_calls(body: str) -> list[ToolCall]:
    """Read one call or a list of calls: {"name": ..., "arguments": {...}}. Raises ValueError."""
    found = read_json(body)
    calls = found if isinstance(found, list) else [found]
    return [_call(entry) for entry in calls]


def _call(entry: Any) -> ToolCall:
    name = entry.get("name") if isinstance(entry, dict) else None
    if not isinstance(name, str) or not is_unicode(name):
        raise ValueError("a call needs a name")
    if not {"arguments", "parameters"} & entry.keys() and entry.keys() - _BESIDE_NAME:
        raise ValueError("a call has arguments, or nothing else that could be them")
    arguments = entry.get("arguments", entry.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = read_json(arguments)
    if not isinstance(arguments, dict):
        raise ValueError("a call's arguments are an object")
    return ToolCall(name, write_json(arguments), whole=True)


def read_json(text: str) -> Any:
    """Parse JSON. Raises ValueError, also for brackets that a model opens without end, for Python's
    NaN and for numbers that are infinite."""
    try:
        return json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def _finite(text: str) -> float:
    number = float(text)
    return number if isfinite(number) else _no_number(text)


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def write_json(value: object) -> str:
    """Write JSON. Raises ValueError for numbers that JSON lacks."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    # Half of a surrogate pair, which JSON can escape, has no UTF-8.
    return text if is_unicode(text) else json.dumps(value, allow_nan=False)


def is_unicode(text: str) -> bool:
    """Return False for a text with half of a surrogate pair, which UTF-8 cannot have."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
