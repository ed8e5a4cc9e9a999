"""The messages of `/v1/messages`, read into the normal form of a conversation."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from baton.api.anthropic.documents import text_of_document
from baton.api.errors import refused, shorten
from baton.text.conversation import CallArguments, Message, PastCall, text_of_part, without_empty

Block = Mapping[str, Any]
_BILLING = "x-anthropic-billing-header:"
"""The beginning of Claude Code's first system block. It has a new hash in each request, before all
that a cached prefix could begin with."""
_RESULTS = ("tool_result", "mcp_tool_result")
_ERROR = "Error: "
"""The beginning of a failed tool's result: templates have no place for `is_error`."""


def conversation_of(
    system: str | Sequence[Block] | None, messages: Sequence[Block]
) -> tuple[Message, ...]:
    """Return the normal form of the messages. Raises `ApiError`."""
    found: list[Message] = []
    if system is not None:
        texts = [text for text in _texts(system, "system") if not text.startswith(_BILLING)]
        if texts:
            found.append(Message("system", tuple(texts)))
    for number, message in enumerate(messages):
        found += _converted(message, f"messages.{number}")
    return tuple(found)


def _converted(message: Block, where: str) -> Iterator[Message]:
    role, content = message.get("role"), message.get("content")
    if role == "assistant":
        yield from _turns(content, f"{where}.content")
    elif role == "user":
        yield from _of_user(content, f"{where}.content")
    elif role == "system":
        yield Message("system", _texts(content, f"{where}.content"))
    else:
        raise refused(
            f"{where}.role",
            f"{where}.role is {shorten(repr(role))}; expected user or assistant",
        )


def _of_user(content: object, where: str) -> Iterator[Message]:
    """Yield the results of tools, each a message of its own, and then the user's text."""
    texts: list[str] = []
    results = 0
    for block, place in _blocks(content, where):
        if block.get("type") in _RESULTS:
            results += 1
            yield _result(block, place)
        else:
            texts.append(_text(block, place))
    if texts or not results:
        yield Message("user", without_empty(texts))


def _result(block: Block, where: str) -> Message:
    content = block.get("content")
    parts = () if content is None else _texts(content, f"{where}.content")
    if block.get("is_error") is True:
        parts = (_ERROR + "".join(parts[:1]), *parts[1:])
    return Message("tool", parts, more={"tool_call_id": _string(block, "tool_use_id", where)})


def _turns(content: object, where: str) -> Iterator[Message]:
    """Yield the turn of the model, in several parts if results of MCP servers stand in it."""
    blocks: list[tuple[Block, str]] = []
    for block, place in _blocks(content, where):
        if block.get("type") != "mcp_tool_result":
            blocks.append((block, place))
            continue
        if blocks:
            yield _turn(blocks)
        yield _result(block, place)
        blocks = []
    if blocks or not content:
        yield _turn(blocks)


def _turn(blocks: Sequence[tuple[Block, str]]) -> Message:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[PastCall] = []
    for block, place in blocks:
        match block.get("type"):
            case "tool_use" | "mcp_tool_use":
                arguments = block.get("input")
                if not isinstance(arguments, dict | str | None):
                    raise refused(f"{place}.input", f"{place}.input: expected an object")
                name, of_call = _string(block, "name", place), _string(block, "id", place)
                calls.append(PastCall(name, CallArguments.of(arguments), of_call))
            case "thinking":
                thoughts.append(_string(block, "thinking", place))
            case "redacted_thinking":  # no server but the one that wrote it can read it
                continue
            case _:
                texts.append(_text(block, place))
    return Message("assistant", without_empty(texts), "".join(thoughts), tuple(calls))


def _blocks(content: object, where: str) -> Iterator[tuple[Block, str]]:
    """Yield the blocks of a content with their places. A string is one block of text."""
    if isinstance(content, str):
        yield {"type": "text", "text": content}, where
        return
    if not isinstance(content, list) or not all(isinstance(each, dict) for each in content):
        raise refused(where, f"{where}: expected a string or a list of content blocks")
    for number, block in enumerate(content):
        yield block, f"{where}.{number}"


def _texts(content: object, where: str) -> tuple[str, ...]:
    return without_empty([_text(block, place) for block, place in _blocks(content, where)])


def _text(block: Block, where: str) -> str:
    text = text_of_part(block)
    if text is None:
        text = text_of_document(block)
    if text is None:
        raise refused(
            f"{where}.type",
            f"{where} is a block of type {shorten(repr(block.get('type')))}; this server reads "
            "text, documents that hold text, thinking, tool_use and tool_result",
        )
    return text


def _string(block: Block, name: str, where: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise refused(f"{where}.{name}", f"{where}.{name}: expected a string")
    return value
