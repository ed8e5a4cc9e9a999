"""Words of llguidance's Lark that several grammars are made of."""

import json
from collections.abc import Mapping
from typing import Any

ANY_TEXT = "/(.|\\n)*/"


def literal_rule(text: str) -> str:
    """Return what a rule says of a text that must come; nothing for the empty one."""
    return json.dumps(text, ensure_ascii=False) if text else ""


def mark_rule(mark: str, special: Mapping[str, int]) -> str:
    """Return what a rule says of a mark: its text, or its special token where it is one.

    special: the ids of the marks that are special tokens
    """
    text = literal_rule(mark)
    return f"({text} | <[{special[mark]}]>)" if mark in special else text


def json_rule(schema: Mapping[str, Any]) -> str:
    """Return what a rule says of compact JSON that follows a schema.

    White space without end would be in the grammar otherwise, and fill the answer.
    """
    given = schema.get("x-guidance")
    options = {**(given if isinstance(given, dict) else {}), "whitespace_flexible": False}
    return f"%json {json.dumps({**schema, 'x-guidance': options}, ensure_ascii=False)}"
