"""Content blocks of `/v1/messages` that say what Anthropic's servers did.

They are left out, as the tools that made them are: only those servers can go on from them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationInfo

from baton.api.errors import refused, shorten
from baton.api.fields.request_fields import FieldCheck, UnknownFields

_OF_SERVERS = frozenset(("container_upload", "server_tool_use", "tool_reference"))
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
        if not isinstance(content, list):
            kept.append(message)
            continue
        blocks = _kept(content, f"messages.{number}.content", check)
        if not content or not all(_is_unreadable(block) for block in blocks):
            kept.append({**message, "content": blocks})
    return kept


def _kept(content: Sequence[Any], where: str, check: FieldCheck) -> list[Any]:
    kept = []
    for number, block in enumerate(content):
        kind = block.get("type") if isinstance(block, Mapping) else None
        if isinstance(kind, str) and _is_of_servers(kind):
            if check.policy is UnknownFields.REFUSE:
                raise refused(
                    f"{where}.{number}.type",
                    f"{where}.{number} is a block of type {shorten(repr(kind))}: this server runs "
                    "no tools of its own",
                )
            check.leave_out(f"messages[{kind}]")
        elif kind == "tool_result" and isinstance(block.get("content"), list):
            inner = _kept(block["content"], f"{where}.{number}.content", check)
            kept.append({**block, "content": inner})
        else:
            kept.append(block)
    return kept


def _is_of_servers(kind: str) -> bool:
    return kind in _OF_SERVERS or (kind.endswith(_RESULT) and kind != _READ)


def _is_unreadable(block: object) -> bool:
    """Return True for reasoning that no server but the one that wrote it can read."""
    return isinstance(block, Mapping) and block.get("type") == "redacted_thinking"
