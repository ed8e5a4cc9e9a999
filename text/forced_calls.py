"""Tool calls that a grammar forces: a JSON list of {"name": ..., "arguments": {...}}.

vLLM and SGLang force calls in the same form, whatever form the model was trained on.
"""

import json
import re

from baton.text.reply_parser import TextPart
from baton.text.tool_calls import ToolCall, read_calls

_OPENING = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*')


class ForcedCallParser:
    """A parser of the list as it grows. Each call is returned once it is complete."""

    def __init__(self) -> None:
        self._text = ""  # the call that has begun, without what stands before it
        self._depth = 0  # of brackets; the list's own is the first
        self._in_string = False
        self._escaped = False

    def push(self, text: str) -> list[TextPart | ToolCall]:
        calls: list[TextPart | ToolCall] = []
        for char in text:
            if self._depth > 1 or char == "{":
                self._text += char
            self._follow(char)
            if self._depth == 1 and char == "}" and not self._in_string:
                calls += self._complete()
                self._text = ""
        return calls

    def finish(self) -> list[TextPart | ToolCall]:
        """Return the call that the end of the answer cut off, with its arguments so far."""
        return list(self._as_written(self._text))

    def _complete(self) -> list[ToolCall]:
        try:
            return read_calls(self._text)
        except ValueError:  # nested too deep for Python's parser
            return self._as_written(self._text.rstrip().removesuffix("}"))

    def _as_written(self, text: str) -> list[ToolCall]:
        opening = _OPENING.match(text)
        return [] if opening is None else [ToolCall(json.loads(opening[1]), text[opening.end() :])]

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
