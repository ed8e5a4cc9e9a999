"""Tool calls that a grammar forces: a JSON list of {"name": ..., "arguments": {...}}.

vLLM and SGLang force calls in the same form, whatever form the model was trained on.
"""

import json
import re

from baton.text.reply_parser import Part, PartKind, TextPart
from baton.text.tool_calls import CallMore, ToolCall, read_calls

_OPENING = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*')


class ForcedCallParser:
    """A parser of the list as it grows. Arguments are returned as the model writes them."""

    def __init__(self) -> None:
        self._text = ""  # the call that has begun, up to its arguments
        self._arguments: str | None = None  # those not returned yet; None: none have begun
        self._depth = 0  # of brackets; the list's own is the first, the arguments' the third
        self._in_string = False
        self._escaped = False

    marks: tuple[str, ...] = ()
    """The grammar allows none."""

    def push(self, text: str) -> list[Part]:
        found: list[Part] = []
        for char in text:
            self._follow(char)
            if self._arguments is not None:
                self._arguments += char
                if self._depth == 2 and char == "}" and not self._in_string:
                    self._give(found, whole=True)
                    self._arguments = None
            elif self._depth > 1 or (self._depth == 1 and char == "}"):
                self._take(char, found)
        self._give(found)
        return found

    def finish(self) -> list[Part]:
        """Return the text of a call that the end of the answer cut off before its arguments. A
        call without any is one that takes none to many clients."""
        text, self._text = self._text, ""
        return [TextPart(PartKind.CONTENT, text)] if text.strip() else []

    def _take(self, char: str, found: list[Part]) -> None:
        """Take a character of a call outside of its arguments."""
        if self._depth == 3 and char == "{" and not self._in_string:
            opening = _OPENING.fullmatch(self._text)
            if opening is not None:
                found.append(ToolCall(json.loads(opening[1]), ""))
                self._text, self._arguments = "", char
                return
        self._text += char
        if self._depth == 1:
            if self._text != "}":  # a call in another order than the grammar's
                found += read_calls(self._text)
            self._text = ""

    def _give(self, found: list[Part], *, whole: bool = False) -> None:
        """Return the arguments so far."""
        if not self._arguments:
            return
        last = found[-1] if found else None
        if isinstance(last, ToolCall) and not last.whole:
            found[-1] = ToolCall(last.name, last.arguments + self._arguments, whole)
        else:
            found.append(CallMore(self._arguments, whole))
        self._arguments = ""

    def _follow(self, char: str) -> None:
        if self._in_string:
            if self._escaped or char == "\\":
                self._escaped = not self._escaped
            elif char == '"':
                self._in_string = False
        elif char == '"':
            self._in_string = True
        elif char in "[{":
            self._depth += 1
        elif char in "]}":
            self._depth -= 1
