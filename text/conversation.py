"""The normal form of a conversation, which every API is read into and every prompt is made from.

Clients send one conversation in many forms: content as text, parts, null or nothing, arguments of
calls as text or as an object. What a template gets depends on the conversation alone.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SYSTEM_ROLES = ("system", "developer")
_EMPTY_ARGUMENTS = ("", "null", "[]", "{}")
_CLOSERS = {"{": "}", "[": "]"}


@dataclass(frozen=True)
class CallArguments:
    """The arguments of an earlier call."""

    text: str = "{}"  # as the client wrote it, or the JSON of its object
    value: Mapping[str, Any] | None = field(default_factory=dict)  # None: the text is no object

    @classmethod
    def of(cls, given: object) -> "CallArguments":
        """Read what clients send: an object, its text, or an empty or null one of either."""
        if isinstance(given, str):
            if given.strip() in _EMPTY_ARGUMENTS:
                return cls()
            found = _parsed(given)
            return cls(given, found if isinstance(found, dict) else None)
        if not given:
            return cls()
        text = json.dumps(given, ensure_ascii=False)
        return cls(text, given if isinstance(given, Mapping) else None)

    def whole(self) -> Mapping[str, Any]:
        """Return an object that holds all that can be read. A text that ends too early, as an
        answer at its limit does, is read as if it were closed there."""
        if self.value is not None:
            return self.value
        found = _parsed(self.text + _missing_end(self.text))
        return found if isinstance(found, dict) else {"arguments": self.text}


@dataclass(frozen=True)
class PastCall:
    """An earlier call of a tool."""

    name: str
    arguments: CallArguments = CallArguments()
    id: str | None = None


@dataclass(frozen=True)
class Message:
    """One message. Its role is `system` for what clients call `developer`."""

    role: str
    parts: tuple[str, ...] = ()  # the texts of its content; none for an empty or null content
    reasoning: str = ""
    calls: tuple[PastCall, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)
    """Other fields, for templates that know them: `name`, `tool_call_id`."""

    @property
    def can_go_on(self) -> bool:
        """True if this is a turn of the model's that ends with text."""
        return self.role == "assistant" and not self.calls and bool("".join(self.parts).strip())

    def texts(self) -> Iterator[object]:
        """Yield all that has a size: what templates may write."""
        yield from (self.parts, self.reasoning, self.more)
        for call in self.calls:
            yield from (call.name, call.arguments.text)


def text_of_part(part: object) -> str | None:
    """Return the text of a part of a content, by any API's name of it; None for another part."""
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        return None
    match part.get("type"):
        case "text" | "input_text" | "output_text" | "summary_text" | "reasoning_text":
            text = part.get("text")
        case "refusal":
            text = part.get("refusal")
        case _:
            return None
    return text if isinstance(text, str) else None


def without_empty(parts: Sequence[str]) -> tuple[str, ...]:
    """Return the parts that have text."""
    return tuple(part for part in parts if part)


def _parsed(text: str) -> object:
    """Return the value of a JSON text; None if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _missing_end(text: str) -> str:
    """Return what closes the strings, lists and objects that a JSON text leaves open."""
    closers: list[str] = []
    quoted = escaped = False
    for char in text:
        if escaped:
            escaped = False
        elif quoted:
            escaped, quoted = char == "\\", char != '"'
        elif char == '"':
            quoted = True
        elif char in _CLOSERS:
            closers.append(_CLOSERS[char])
        elif closers and char == closers[-1]:
            closers.pop()
    return ('"' if quoted else "") + "".join(reversed(closers))
