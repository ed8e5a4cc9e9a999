"""Content blocks of `/v1/messages` that say what Anthropic's servers did.

They are left out, as the tools that made them are: only those servers can go on from them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationInfo

from baton.api.errors import refused, shorten
from baton.api.fields.inner_fields import BLOCK, TURN, known_only
from baton.api.fields.request_fields import FieldCheck, UnknownFields

_OF_SERVERS = frozenset(
    (
        "container_upload", "fallback", "mcp_tool_listing", "server_tool_use", "tool_addition",
        "tool_reference", "tool_removal",
    )
)  # fmt: skip
_RESULT = "_tool_result"
"""The end of the names of the blocks that servers' tools write: `web_search_tool_result`."""
_READ = "mcp_tool_result"


def read_blocks(given: object, info: ValidationInfo) -> object:
    """Return the messages with the blocks that the model is told of. A message of no others is left
    out too. Raises `ApiError`, unless the rule for unknown fields allows to leave them out.
    """
    if not isinstance(given, list):
        return given
    check = info.context or FieldCheck()
    kept = []
    for number, message in enumerate(given):
        content = message.get("content") if isinstance(message, Mapping) else None
        turn = known_only(message, TURN, check, f"messages.{number}", "messages")
        if not isinstance(content, list):
            kept.append(turn)
            continue
        blocks = _kept(content, f"messages.{number}.content", check)
        if not content or not all(_is_unreadable(block) for block in blocks):
            kept.append({**turn, "content": blocks})
    return kept


def read_system(given: object, info: ValidationInfo) -> object:
    """Return the blocks of a system prompt with the fields that are known. Raises `ApiError`."""
    return known_only(given, BLOCK, info.context or FieldCheck(), "system", "system")


def _kept(content: Sequence[Any], where: str, check: FieldCheck) -> list[Any]:
    kept = []
    for number, block in enumerate(content):
        place = f"{where}.{number}"
        kind = block.get("type") if isinstance(block, Mapping) else None
        if isinstance(kind, str) and _is_of_servers(kind):
            if check.policy is UnknownFields.REFUSE:
                raise refused(
                    f"{place}.type",
                    f"{place} is a block of type {shorten(repr(kind))}: this server runs no tools "
                    "of its own",
                )
            check.leave_out(f"messages[{kind}]")
            continue
        known = known_only(block, BLOCK, check, place, "messages.content")
        if kind in ("tool_result", _READ) and isinstance(known.get("content"), list):
            known["content"] = _kept(known["content"], f"{place}.content", check)
        kept.append(known)
    return kept


def _is_of_servers(kind: str) -> bool:
    return kind in _OF_SERVERS or (kind.endswith(_RESULT) and kind != _READ)


def _is_unreadable(block: object) -> bool:
    """Return True for reasoning that no server but the one that wrote it can read."""
    return isinstance(block, Mapping) and block.get("type") == "redacted_thinking"
