"""The fields by which clients of other servers say whether a chat request thinks.

`thinking` is DeepSeek's, GLM's and Kimi's, `reasoning` OpenRouter's and SGLang's. All end in the
variables of the chat template, as `reasoning_effort` does.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import PlainValidator, ValidationInfo, WithJsonSchema

from baton.api.errors import refused, shorten
from baton.api.fields.inner_fields import ObjectKind, known_only
from baton.api.fields.request_fields import FieldCheck, UnknownFields

_THINKING = ObjectKind.of("type budget_tokens", "")
_REASONING = ObjectKind.of("enabled effort max_tokens exclude", "summary generate_summary")
_TYPES = {"enabled": True, "adaptive": True, "auto": True, "disabled": False}


@dataclass(frozen=True)
class ReasoningWish:
    """The wishes of a `reasoning`; None: it has none."""

    on: bool | None = None
    effort: str | None = None


def read_thinking(given: object, info: ValidationInfo) -> bool | None:
    """Return whether a `thinking` turns thinking on; None if it says nothing. Raises `ApiError`."""
    check = info.context or FieldCheck()
    if isinstance(given, bool):
        return given
    if given == {}:
        return None
    found = known_only(given, _THINKING, check, "thinking", "thinking")
    kind = found.get("type") if isinstance(found, Mapping) else None
    if not isinstance(kind, str) or kind not in _TYPES:
        raise refused(
            "thinking",
            f"thinking is {shorten(repr(given))}; expected an object of type enabled or disabled",
        )
    _leave_out(found, ("budget_tokens",), "thinking", check)
    return _TYPES[kind]


def read_reasoning(given: object, info: ValidationInfo) -> ReasoningWish:
    """Return what a `reasoning` asks for. Raises `ApiError`."""
    check = info.context or FieldCheck()
    found = known_only(given, _REASONING, check, "reasoning", "reasoning")
    if not isinstance(found, Mapping):
        raise refused("reasoning", f"reasoning is {shorten(repr(given))}; expected an object")
    on, effort = found.get("enabled"), found.get("effort")
    if not isinstance(on, bool | None):
        raise refused("reasoning.enabled", "reasoning.enabled: expected true or false")
    if not isinstance(effort, str | None):
        raise refused("reasoning.effort", "reasoning.effort: expected a string")
    _leave_out(found, ("max_tokens", "exclude"), "reasoning", check)
    return ReasoningWish(on, effort)


def _leave_out(
    found: Mapping[str, Any], names: tuple[str, ...], where: str, check: FieldCheck
) -> None:
    """Name what is known and has no use here. Raises `ApiError` if the rule is to refuse it."""
    for name in names:
        if found.get(name) in (None, False):
            continue
        if check.policy is UnknownFields.REFUSE:
            raise refused(f"{where}.{name}", f"{where}.{name} is not supported; leave it out")
        check.leave_out(f"{where}.{name}")


_OBJECT = {"type": "object"}
ThinkingSwitch = Annotated[
    bool | None,
    PlainValidator(read_thinking),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "boolean"},
                _OBJECT | {"properties": {"type": {"enum": list(_TYPES)}}, "required": ["type"]},
            ]
        }
    ),
]
ReasoningOptions = Annotated[
    ReasoningWish,
    PlainValidator(read_reasoning),
    WithJsonSchema(
        _OBJECT | {"properties": {"enabled": {"type": "boolean"}, "effort": {"type": "string"}}}
    ),
]
