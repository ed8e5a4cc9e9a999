"""Tool calls that a grammar forces behind reasoning."""

from collections.abc import Iterator, Sequence

from baton.text.forced_calls import ForcedCallParser
from baton.text.reply_parser import Part, PartKind, ReplyParser, TextPart


class ReasonedCallParser:
    """A parser of reasoning, which `reply` finds, and of the list of calls behind it."""

    def __init__(self, reply: ReplyParser, *, separate: bool) -> None:
        """separate: False: reasoning is content."""
        self.marks = reply.marks
        self._reply = reply
        self._separate = separate
        self._calls = ForcedCallParser()

    def push(self, text: str) -> list[Part]:
        return list(self._read(self._reply.push(text)))

    def finish(self) -> list[Part]:
        """Return the parts that were held back, at the end of the answer."""
        return [*self._read(self._reply.finish()), *self._calls.finish()]

    def _read(self, parts: Sequence[Part]) -> Iterator[Part]:
        for part in parts:
            if not isinstance(part, TextPart):
                yield part
            elif part.kind is PartKind.CONTENT:
                yield from self._calls.push(part.text)
            else:
                yield part if self._separate else TextPart(PartKind.CONTENT, part.text)
