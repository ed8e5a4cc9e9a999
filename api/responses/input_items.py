"""The input of `/v1/responses`, read into the normal form of a conversation."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from baton.api.errors import refused, shorten
from baton.api.responses.sealed_reasoning import unseal
from baton.api.responses.tools import CUSTOM_INPUT, flat_name
from baton.text.conversation import (
    SYSTEM_ROLES,
    CallArguments,
    Message,
    PastCall,
    text_of_part,
    without_empty,
)

Item = Mapping[str, Any]


def messages_of(given: str | Sequence[Item], instructions: str | None) -> tuple[Message, ...]:
    """Return the messages of a conversation. Raises `ApiError` for an item that is not one.

    Reasoning, text and calls of one turn of the model, which are items of their own, become one
    message.
    """
    items: Sequence[Item] = given if not isinstance(given, str) else [{"content": given}]
    messages = [Message("system", (instructions,))] if instructions else []
    for number, item in enumerate(items):
        _add(messages, item, f"input.{number}")
    return tuple(messages)


def _add(messages: list[Message], item: Item, where: str) -> None:
    match item.get("type", "message"):
        case "message":
            _add_message(messages, item, where)
        case "function_call" | "custom_tool_call" as kind:
            arguments = item.get("arguments")
            if kind == "custom_tool_call":
                arguments = {CUSTOM_INPUT: _text(item, "input", where)}
            call = PastCall(
                flat_name(_text(item, "name", where), item.get("namespace")),
                CallArguments.of(arguments),
                _text(item, "call_id", where),
            )
            turn = _turn(messages)
            messages[-1] = replace(turn, calls=(*turn.calls, call))
        case "function_call_output" | "custom_tool_call_output":
            content = _content(item.get("output"), f"{where}.output")
            more = {"tool_call_id": _text(item, "call_id", where)}
            messages.append(Message("tool", content, more=more))
        case "reasoning":
            texts = [
                text_of_part(part) for part in item.get("content") or item.get("summary") or ()
            ]
            thoughts = "".join(text for text in texts if text is not None)
            thoughts = thoughts or unseal(item.get("encrypted_content"))
            if thoughts:
                turn = _turn(messages)
                messages[-1] = replace(turn, reasoning=turn.reasoning + thoughts)
        case "item_reference":
            raise refused(
                where,
                f"{where} is an item_reference, and this server stores no items; expected the "
                "item itself, which clients send with store: false",
            )
        case kind:
            raise refused(
                where,
                f"{where} has type {shorten(repr(kind))}; expected message, function_call, "
                "function_call_output or reasoning",
            )


def _add_message(messages: list[Message], item: Item, where: str) -> None:
    role = item.get("role", "user")
    content = _content(item.get("content"), f"{where}.content")
    if role == "assistant":
        turn = _turn(messages)
        messages[-1] = replace(turn, parts=turn.parts + content)
    elif role == "user":
        messages.append(Message("user", content))
    elif role in SYSTEM_ROLES:
        messages.append(Message("system", content))
    else:
        raise refused(
            f"{where}.role",
            f"{where}.role is {shorten(repr(role))}; expected user, assistant, system or developer",
        )


def _turn(messages: list[Message]) -> Message:
    """Return the last message if it is the model's, else a new one."""
    if not messages or messages[-1].role != "assistant":
        messages.append(Message("assistant"))
    return messages[-1]


def _text(item: Item, name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise refused(f"{where}.{name}", f"{where}.{name}: expected a string")
    return value


def _content(value: object, where: str) -> tuple[str, ...]:
    """Return the texts of a content. Raises `ApiError` for parts that are no text."""
    if isinstance(value, str):
        return without_empty([value])
    if value is None:
        return ()
    if not isinstance(value, list):
        raise refused(where, f"{where}: expected a string or a list of text parts")
    texts: list[str] = []
    for part in value:
        text = text_of_part(part)
        if text is None:
            kind = part.get("type") if isinstance(part, Mapping) else None
            raise refused(
                where,
                f"{where} has a part of type {shorten(repr(kind))}; expected input_text or "
                "output_text: this server reads no others",
            )
        texts.append(text)
    return without_empty(texts)
