"""The input of `/v1/responses` as a conversation that chat templates read."""

from collections.abc import Mapping, Sequence
from typing import Any

from baton.api.errors import refused, shorten

_TEXTS = ("input_text", "output_text", "text")
_SYSTEM = ("system", "developer")
Item = Mapping[str, Any]
MessageJson = dict[str, Any]


def messages_of(given: str | Sequence[Item], instructions: str | None) -> list[MessageJson]:
    """Return the messages of a conversation. Raises `ApiError` for an item that is not one.

    Reasoning, text and calls of one turn of the model, which are items of their own, become one
    message. System messages at the beginning are joined: templates expect at most one.
    """
    items: Sequence[Item] = given if not isinstance(given, str) else [{"content": given}]
    messages: list[MessageJson] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    for number, item in enumerate(items):
        _add(messages, item, f"input.{number}")
    return messages


def _add(messages: list[MessageJson], item: Item, where: str) -> None:
    match item.get("type", "message"):
        case "message":
            _add_message(messages, item, where)
        case "function_call":
            function = {"name": _text(item, "name", where)}
            function["arguments"] = _text(item, "arguments", where)
            call = {"id": _text(item, "call_id", where), "type": "function", "function": function}
            _turn(messages).setdefault("tool_calls", []).append(call)
        case "function_call_output":
            content = _content(item.get("output"), f"{where}.output")
            call_id = _text(item, "call_id", where)
            messages.append({"role": "tool", "tool_call_id": call_id, "content": content})
        case "reasoning":
            parts = item.get("content") or item.get("summary") or []
            thoughts = [part.get("text") for part in parts if isinstance(part, Mapping)]
            text = "".join(each for each in thoughts if isinstance(each, str))
            if text:
                turn = _turn(messages)
                turn["reasoning_content"] = turn.get("reasoning_content", "") + text
        case kind:
            raise refused(
                where,
                f"{where} has type {shorten(repr(kind))}; expected message, function_call, "
                "function_call_output or reasoning",
            )


def _add_message(messages: list[MessageJson], item: Item, where: str) -> None:
    role = item.get("role", "user")
    content = _content(item.get("content"), f"{where}.content")
    if role == "assistant":
        turn = _turn(messages)
        turn["content"] = turn["content"] + content
    elif role == "user":
        messages.append({"role": "user", "content": content})
    elif role in _SYSTEM:
        if len(messages) == 1 and messages[0]["role"] == "system":
            messages[0]["content"] += "\n\n" + content
        else:
            messages.append({"role": "system", "content": content})
    else:
        raise refused(
            f"{where}.role",
            f"{where}.role is {shorten(repr(role))}; expected user, assistant, system or developer",
        )


def _turn(messages: list[MessageJson]) -> MessageJson:
    """Return the last message if it is the model's, else a new one."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _text(item: Item, name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise refused(f"{where}.{name}", f"{where}.{name}: expected a string")
    return value


def _content(value: Any, where: str) -> str:
    """Return the text of a content. Raises `ApiError` for parts that are no text."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise refused(where, f"{where}: expected a string or a list of text parts")
    texts = []
    for part in value:
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("text") if kind in _TEXTS else None
        if not isinstance(text, str):
            raise refused(
                where,
                f"{where} has a part of type {shorten(repr(kind))}; expected input_text or "
                "output_text: this server reads no others",
            )
        texts.append(text)
    return "".join(texts)
