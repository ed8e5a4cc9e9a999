"""The messages of `/v1/messages` as a conversation that chat templates read."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from baton.api.errors import refused, shorten

Block = Mapping[str, Any]
ChatMessage = dict[str, Any]


def conversation_of(
    system: str | Sequence[Block] | None, messages: Sequence[Block]
) -> list[ChatMessage]:
    """Return the messages in the form of chat completions. Raises `ApiError`."""
    found: list[ChatMessage] = []
    text = _text_of(system, "system") if system is not None else ""
    if text:
        found.append({"role": "system", "content": text})
    for number, message in enumerate(messages):
        found += _converted(message, f"messages.{number}")
    return found


def _converted(message: Block, where: str) -> Iterator[ChatMessage]:
    role, content = message.get("role"), message.get("content")
    if role == "assistant":
        yield _turn(content, f"{where}.content")
    elif role == "user":
        yield from _of_user(content, f"{where}.content")
    elif role == "system":
        yield {"role": "system", "content": _text_of(content, f"{where}.content")}
    else:
        raise refused(
            f"{where}.role",
            f"{where}.role is {shorten(repr(role))}; expected user or assistant",
        )


def _of_user(content: Any, where: str) -> Iterator[ChatMessage]:
    """Yield the results of tools, each a message of its own, and then the user's text."""
    texts = []
    for block, place in _blocks(content, where):
        if block.get("type") == "tool_result":
            given = block.get("content")
            yield {
                "role": "tool",
                "tool_call_id": _string(block, "tool_use_id", place),
                "content": "" if given is None else _text_of(given, f"{place}.content"),
            }
        else:
            texts.append(_text(block, place))
    if texts:
        yield {"role": "user", "content": "".join(texts)}


def _turn(content: Any, where: str) -> ChatMessage:
    message: ChatMessage = {"role": "assistant", "content": ""}
    for block, place in _blocks(content, where):
        match block.get("type"):
            case "tool_use":
                arguments = block.get("input")
                if not isinstance(arguments, dict):
                    raise refused(f"{place}.input", f"{place}.input: expected an object")
                function = {"name": _string(block, "name", place), "arguments": arguments}
                call = {"id": _string(block, "id", place), "type": "function", "function": function}
                message.setdefault("tool_calls", []).append(call)
            case "thinking":
                thoughts = _string(block, "thinking", place)
                message["reasoning_content"] = message.get("reasoning_content", "") + thoughts
            case "redacted_thinking":  # no server but the one that wrote it can read it
                continue
            case _:
                message["content"] += _text(block, place)
    return message


def _blocks(content: Any, where: str) -> Iterator[tuple[Block, str]]:
    """Yield the blocks of a content with their places. A string is one block of text."""
    if isinstance(content, str):
        yield {"type": "text", "text": content}, where
        return
    if not isinstance(content, list) or not all(isinstance(each, dict) for each in content):
        raise refused(where, f"{where}: expected a string or a list of content blocks")
    for number, block in enumerate(content):
        yield block, f"{where}.{number}"


def _text_of(content: Any, where: str) -> str:
    return "".join(_text(block, place) for block, place in _blocks(content, where))


def _text(block: Block, where: str) -> str:
    if block.get("type") != "text":
        raise refused(
            f"{where}.type",
            f"{where} is a block of type {shorten(repr(block.get('type')))}; this server reads "
            "text, thinking, tool_use and tool_result",
        )
    return _string(block, "text", where)


def _string(block: Block, name: str, where: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise refused(f"{where}.{name}", f"{where}.{name}: expected a string")
    return value
