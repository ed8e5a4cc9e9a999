"""Answers with calls of tools, written as the models of each form write them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from baton.text.tool_calls import Parameters, ToolFormat, find_tool_format

Calls = Sequence[tuple[str, dict[str, Any]]]


@dataclass(frozen=True)
class Written:
    """One form: a text that its templates have, and how its models write calls."""

    template: str
    write: Callable[[Calls], str]

    @property
    def form(self) -> ToolFormat:
        form = find_tool_format(self.template)
        assert form is not None
        return form


def _json(name: str, arguments: dict[str, Any], key: str = "arguments") -> str:
    written = json.dumps(arguments, ensure_ascii=False)
    return f'{{"name": {json.dumps(name)}, "{key}": {written}}}'


def _hermes(calls: Calls) -> str:
    return "\n".join(f"<tool_call>\n{_json(*call)}\n</tool_call>" for call in calls)


def _falcon(calls: Calls) -> str:
    written = ",\n  ".join(_json(*call) for call in calls)
    return f"<tool_call>\n[\n  {written}\n]\n</tool_call>"


def _tag_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _one_in_tags(name: str, arguments: dict[str, Any]) -> str:
    given = "".join(
        f"<parameter={key}>\n{_tag_value(value)}\n</parameter>\n"
        for key, value in arguments.items()
    )
    return f"<function={name}>\n{given}</function>"


def _tags(calls: Calls) -> str:
    return "\n".join(f"<tool_call>\n{_one_in_tags(*call)}\n</tool_call>" for call in calls)


def _tags_without_mark(calls: Calls) -> str:
    return "\n".join(f"{_one_in_tags(*call)}\n</tool_call>" for call in calls)


def _nemotron(calls: Calls) -> str:
    return f"<TOOLCALL>[{', '.join(_json(*call) for call in calls)}]</TOOLCALL>"


def _granite(calls: Calls) -> str:
    return f"<|tool_call|>[{', '.join(_json(*call) for call in calls)}]"


def _deepseek_v31(calls: Calls) -> str:
    parts = [
        f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{json.dumps(given, ensure_ascii=False)}"
        "<｜tool▁call▁end｜>"
        for name, given in calls
    ]
    return f"<｜tool▁calls▁begin｜>{''.join(parts)}<｜tool▁calls▁end｜>"


def _deepseek_v3(calls: Calls) -> str:
    parts = [
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n"
        f"{json.dumps(given, ensure_ascii=False)}\n```<｜tool▁call▁end｜>"
        for name, given in calls
    ]
    joined = "\n".join(parts)
    return f"<｜tool▁calls▁begin｜>{joined}<｜tool▁calls▁end｜>"


def _kimi(calls: Calls) -> str:
    parts = [
        f"<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>"
        f"{json.dumps(given, ensure_ascii=False)}<|tool_call_end|>"
        for number, (name, given) in enumerate(calls)
    ]
    return f"<|tool_calls_section_begin|>{''.join(parts)}<|tool_calls_section_end|>"


def _python_value(value: Any) -> str:
    return repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _lfm2(calls: Calls) -> str:
    parts = [
        f"{name}({', '.join(f'{key}={_python_value(each)}' for key, each in given.items())})"
        for name, given in calls
    ]
    return f"<|tool_call_start|>[{', '.join(parts)}]<|tool_call_end|>"


def _lfm2_json(calls: Calls) -> str:
    return "\n".join(f"<|tool_call_start|>\n{_json(*call)}\n<|tool_call_end|>" for call in calls)


def _llama(calls: Calls) -> str:
    return "; ".join(_json(name, given, "parameters") for name, given in calls)


def _llama_with_mark(calls: Calls) -> str:
    return f"<|python_tag|>{_llama(calls)}"


_LLAMA = '<|start_header_id|> {"name": function name, "parameters": dictionary of arguments}'
_TAGS = "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>"
FORMS = {
    "Qwen3, Granite 4": Written("<tool_call>\n{...}\n</tool_call>", _hermes),
    "Falcon-H1": Written("inside <tool_call></tool_call> tags", _falcon),
    "Qwen3-Coder, Qwen3.5, Nemotron 3": Written(_TAGS, _tags),
    "Qwen3-Coder without the mark": Written(_TAGS, _tags_without_mark),
    "Nemotron 2": Written("<TOOLCALL>[...]</TOOLCALL>", _nemotron),
    "Granite 3": Written("<|tool_call|>", _granite),
    "DeepSeek V3.1": Written("<｜tool▁calls▁begin｜>", _deepseek_v31),
    "DeepSeek V3": Written("<｜tool▁calls▁begin｜> ```json", _deepseek_v3),
    "Kimi": Written("<|tool_calls_section_begin|>", _kimi),
    "LFM2.5": Written("<|tool_call_start|>[", _lfm2),
    "LFM2": Written("List of tools: <|tool_list_start|>[", _lfm2),
    "LFM2 in JSON": Written("<|tool_list_start|> <|tool_call_start|>", _lfm2_json),
    "Llama 3": Written(_LLAMA, _llama),
    "Llama 3 with its mark": Written(_LLAMA, _llama_with_mark),
}
KEYS = ("path", "count", "flag", "extra")
PARAMETERS: Parameters = {
    name: {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "count": {"type": "integer"},
            "flag": {"type": "boolean"},
            "extra": {"type": ["object", "array", "null"]},
        },
    }
    for name in ("weather", "run", "a-b_c")
}
