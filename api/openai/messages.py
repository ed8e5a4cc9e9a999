"""The messages of chat completions, read into the normal form of a conversation."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import PlainValidator, ValidationInfo, WithJsonSchema

from baton.api.errors import refused
from baton.api.fields.inner_fields import CHAT_MESSAGE, known_only
from baton.api.fields.request_fields import FieldCheck
from baton.text.conversation import (
    SYSTEM_ROLES,
    CallArguments,
    Message,
    PastCall,
    text_of_part,
    without_empty,
)

_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
CONTENT = {"anyOf": [{"type": "string"}, {"type": "array", "items": _PART}]}
"""The JSON schema of a content."""
_REASONING = ("reasoning_content", "thinking", "reasoning")
"""The names of an earlier turn's reasoning, the first that has a value goes, as in transformers."""
_READ = {"role", "content", "refusal", "tool_calls", "function_call", *_REASONING}


def read_messages(given: object, info: ValidationInfo) -> tuple[Message, ...]:
    """Return the messages of a body; those in the normal form already stay as they are. Raises
    `ApiError`."""
    if isinstance(given, tuple):
        return given
    if not isinstance(given, list):
        raise refused("messages", "messages: Input should be a valid array")
    messages = known_only(given, CHAT_MESSAGE, info.context or FieldCheck(), "messages", "messages")
    return tuple(_message(each, f"messages.{number}") for number, each in enumerate(messages))


_SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "role": {"type": "string"},
            "content": {"anyOf": [*CONTENT["anyOf"], {"type": "null"}]},
        },
        "required": ["role"],
    },
}
Messages = Annotated[tuple[Message, ...], PlainValidator(read_messages), WithJsonSchema(_SCHEMA)]


def read_content(content: object, where: str) -> tuple[str, ...]:
    """Return the texts of a content: a string, parts of text, or null. Raises `ApiError`."""
    return _texts(_parts(content, where), where)


def _message(given: object, where: str) -> Message:
    if not isinstance(given, Mapping):
        raise refused(where, f"{where}: Input should be an object")
    role = given.get("role")
    if not isinstance(role, str):
        why = "Field required" if role is None else "Input should be a valid string"
        raise refused(f"{where}.role", f"{where}.role: {why}")
    parts, thoughts = _without_thoughts(_parts(given.get("content"), f"{where}.content"))
    for name in _REASONING:
        if given.get(name) is not None:
            thoughts = "".join(read_content(given[name], f"{where}.{name}"))
            break
    texts = _texts(parts, f"{where}.content")
    if isinstance(given.get("refusal"), str):
        texts = without_empty((*texts, given["refusal"]))
    if role == "function":  # the name of `tool` before there were ids of calls
        role = "tool"
    return Message(
        "system" if role in SYSTEM_ROLES else role,
        texts,
        thoughts,
        _calls(given, where),
        {name: each for name, each in given.items() if name not in _READ and each is not None},
    )


def _parts(content: object, where: str) -> Sequence[object]:
    if content is None:
        return ()
    if isinstance(content, str):
        return (content,)
    if not isinstance(content, list):
        raise refused(where, f"{where}: expected a string or a list of text parts")
    return content


def _texts(parts: Sequence[object], where: str) -> tuple[str, ...]:
    texts = [text_of_part(part) for part in parts]
    if None in texts:
        raise refused(
            where, f"{where}: expected only parts of type 'text'; this server reads no others"
        )
    return without_empty([text for text in texts if text is not None])


def _without_thoughts(parts: Sequence[object]) -> tuple[Sequence[object], str]:
    """Return the parts that are no reasoning, and the reasoning of the others."""
    kept, thoughts = [], []
    for part in parts:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if isinstance(part, Mapping) and kind in ("thinking", "reasoning"):
            said = part.get("thinking", part.get("text"))
            for each in said if isinstance(said, list) else [said]:
                thoughts.append(text_of_part(each) or "")
        elif kind != "redacted_thinking":  # no server but the one that wrote it can read it
            kept.append(part)
    return kept, "".join(thoughts)


def _calls(message: Mapping[str, Any], where: str) -> tuple[PastCall, ...]:
    given = message.get("tool_calls")
    if not isinstance(given, list | None):
        raise refused(f"{where}.tool_calls", f"{where}.tool_calls: Input should be a valid array")
    if not given and message.get("function_call") is not None:
        return (_call({"function": message["function_call"]}, f"{where}.function_call"),)
    return tuple(
        _call(call, f"{where}.tool_calls.{number}") for number, call in enumerate(given or ())
    )


def _call(given: object, where: str) -> PastCall:
    call = given if isinstance(given, Mapping) else {}
    custom = call.get("type") == "custom"
    kind = "custom" if custom else "function"
    function = call.get(kind)
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str):
        raise refused(
            f"{where}.{kind}", f"{where}.{kind}: expected an object with the name of a tool"
        )
    arguments = {"input": function.get("input")} if custom else function.get("arguments")
    of_call = call.get("id")
    return PastCall(
        name, CallArguments.of(arguments), of_call if isinstance(of_call, str) else None
    )
