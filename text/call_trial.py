"""A call that may stand within reasoning, and counts only if it is whole."""

from collections.abc import Collection
from enum import Enum, auto

from baton.text.call_readers import CallReader
from baton.text.tool_calls import CallMore, ToolCall


class TrialVerdict(Enum):
    OPEN = auto()  # it cannot be told yet
    CALL = auto()  # it is whole, and names an offered tool
    TEXT = auto()  # it is none
    CLOSED = auto()  # the reasoning ended before it was whole


class CallTrial:
    """The text behind a mark within reasoning, and what its reader found in it."""

    def __init__(
        self, mark: str, reader: CallReader, reasoning_end: str, names: Collection[str]
    ) -> None:
        self.mark = mark
        self.reader = reader
        self.text = ""
        """All text behind the mark."""
        self.found: list[ToolCall | CallMore] = []
        self.read = 0
        """The characters of `text` that the reader has."""
        self.closed_at = -1
        """The place in `text` at which the reasoning ends."""
        self._reasoning_end = reasoning_end
        self._names = names

    def push(self, text: str, last: bool) -> TrialVerdict:
        """Take more text."""
        end = self._reasoning_end
        searched = max(0, len(self.text) - len(end))
        self.text += text
        self.closed_at = self.text.find(end, searched)
        until = self.closed_at if self.closed_at >= 0 else len(self.text)
        if self.closed_at < 0 and not last:
            until -= _beginning_of(end, self.text)
        self.found += self.reader.push(self.text[self.read : until])
        self.read = max(self.read, until)
        if any(part.whole for part in self.found):
            name = next(part.name for part in self.found if isinstance(part, ToolCall))
            return TrialVerdict.CALL if name in self._names else TrialVerdict.TEXT
        if self.reader.wrong or self.reader.over:
            return TrialVerdict.TEXT
        return TrialVerdict.CLOSED if last or self.closed_at >= 0 else TrialVerdict.OPEN


def _beginning_of(mark: str, text: str) -> int:
    """Return the characters at the end of a text that a mark may begin with."""
    sizes = range(min(len(mark), len(text)), 0, -1)
    return next((size for size in sizes if text.endswith(mark[:size])), 0)
