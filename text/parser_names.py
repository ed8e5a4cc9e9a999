"""The names by which vLLM and SGLang choose a parser, and the forms that they are here.

Sources: the registries of vLLM's `tool_parsers` and `reasoning`, SGLang's `function_call_parser.py`
and `reasoning_parser.py`. `nemotron_json` is the plugin of NVIDIA's Nemotron Nano 2.
"""

from collections.abc import Mapping

from baton.text.reasoning import ReasoningFormat, find_reasoning_format
from baton.text.tool_calls import (
    DEEPSEEK,
    DEEPSEEK_FENCED,
    GRANITE,
    HERMES,
    KIMI,
    LFM2,
    LLAMA3,
    NEMOTRON,
    TAGS,
    ToolFormat,
    find_tool_format,
)

AUTO, NONE = "auto", "none"
"""The form that the chat template teaches; no form."""

_TOOL_NAMES: Mapping[ToolFormat, tuple[str, ...]] = {
    HERMES: ("hermes", "qwen", "qwen25", "granite4"),
    TAGS: ("qwen3_coder", "qwen3_xml"),
    GRANITE: ("granite",),
    NEMOTRON: ("nemotron_json",),
    DEEPSEEK_FENCED: ("deepseek_v3", "deepseekv3"),
    DEEPSEEK: ("deepseek_v31", "deepseekv31"),
    KIMI: ("kimi_k2",),
    LFM2: ("lfm2",),
    LLAMA3: ("llama3", "llama3_json"),
}
"""The names of a form of calls."""
_REASONING_NAMES: Mapping[str, tuple[str, ...]] = {
    "</think>": (
        "deepseek_r1", "deepseek-r1", "deepseek_v3", "deepseek-v3", "qwen3", "qwen3-thinking",
        "nemotron_v3", "nemotron_3", "nano_v3", "glm45", "interns1", "step3", "minimax", "mimo",
    ),
    "Here is my response:": ("granite",),
}  # fmt: skip
"""The names of a form of reasoning, by its last mark."""
TOOL_PARSERS = {name: form for form, names in _TOOL_NAMES.items() for name in names}
REASONING_PARSERS = {name: mark for mark, names in _REASONING_NAMES.items() for name in names}


def tool_format_of(name: str, template: str) -> ToolFormat | None:
    """Return the form of calls that a parser's name means. template: where `auto` looks.

    Raises KeyError for a name that is not in TOOL_PARSERS.
    """
    if name == NONE:
        return None
    return find_tool_format(template) if name == AUTO else TOOL_PARSERS[name]


def reasoning_format_of(name: str, template: str) -> ReasoningFormat | None:
    """Return the form of reasoning that a parser's name means. template: where `auto` looks.

    Raises KeyError for a name that is not in REASONING_PARSERS.
    """
    if name == NONE:
        return None
    return find_reasoning_format(template if name == AUTO else REASONING_PARSERS[name])
