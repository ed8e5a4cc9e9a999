"""The separation of an answer's text, as it grows, into reasoning, content and tool calls."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from baton.text.call_stream import CallStream
from baton.text.tool_calls import CallMore, Properties, ToolCall, ToolFormat


class PartKind(StrEnum):
    REASONING = "reasoning_content"
    CONTENT = "content"


@dataclass(frozen=True)
class TextPart:
    kind: PartKind
    text: str  # what is new


Part = TextPart | ToolCall | CallMore


@dataclass(frozen=True)
class ReasoningFormat:
    """The marks round a model's reasoning."""

    begin: str
    end: str

    def begun_in(self, prompt: str) -> bool:
        """Return whether the prompt has begun the reasoning: templates often end with its first
        mark."""
        return prompt.rfind(self.begin) > prompt.rfind(self.end)


_THINK = ReasoningFormat("<think>", "</think>")
_GRANITE = ReasoningFormat("Here is my thought process:", "Here is my response:")


def find_reasoning_format(template: str) -> ReasoningFormat | None:
    """Return the format whose marks the chat template has, or None."""
    return next((form for form in (_THINK, _GRANITE) if form.end in template), None)


class ReplyParser:
    """A parser of text that arrives in pieces. The beginning of a mark is held back.

    The arguments of a call are given out as they are written, but for the form with tags, whose
    values need the whole call. A call that cannot be read is content, as the model wrote it; where
    a part of it was given out before, the rest is.

    Large because a call may come whole or in pieces.
    """

    def __init__(
        self,
        reasoning: ReasoningFormat | None,
        tools: ToolFormat | None,
        *,
        thinking: bool = False,
        properties: Properties | None = None,
    ) -> None:
        """thinking: the prompt ended inside of reasoning. properties: the tools' parameters."""
        self._reasoning = reasoning
        self._tools = tools
        self._thinking = thinking
        self._properties = properties or {}
        self._text = ""  # not given out yet
        self._calling = False
        self._searched = 0  # characters of a call that its end does not begin in
        self._stream: CallStream | None = None  # of the call that is read; None: no try was made
        self._streamed = 0  # characters of `_text` that the stream has
        self._given = False  # a part of the call was given out, and the stream has all text
        self._trim = False  # white space after a mark belongs to it

    def push(self, text: str) -> list[Part]:
        self._text += text
        return list(self._read(last=False))

    def finish(self) -> list[Part]:
        """Return the parts that were held back, at the end of the answer."""
        return list(self._read(last=True))

    def _read(self, last: bool) -> Iterator[Part]:
        while True:
            if self._trim:
                self._text = self._text.lstrip()
                self._trim = not self._text
            if self._calling:
                found = self._take_call(last)
                if found is None:
                    return
                yield from found
                continue
            before, mark = self._until_mark(last)
            if mark:
                before = before.rstrip()
            if before:
                yield TextPart(self._kind, before)
            if not mark:
                return
            self._trim = True
            if self._reasoning is not None and mark == self._reasoning.end:
                self._thinking = False
            elif self._reasoning is not None and mark == self._reasoning.begin:
                self._thinking = True
            else:
                self._calling = True

    @property
    def _kind(self) -> PartKind:
        return PartKind.REASONING if self._thinking else PartKind.CONTENT

    @property
    def _marks(self) -> list[str]:
        """Return the marks that have a meaning at this place."""
        if self._thinking and self._reasoning is not None:
            return [self._reasoning.end]
        marks = [self._reasoning.begin] if self._reasoning is not None else []
        return [*marks, self._tools.begin] if self._tools is not None else marks

    def _until_mark(self, last: bool) -> tuple[str, str]:
        """Take the text before the first mark, and the mark. Without a mark, take the text that
        certainly belongs to none."""
        found = [(at, mark) for mark in self._marks if (at := self._text.find(mark)) >= 0]
        if found:
            at, mark = min(found)
            before, self._text = self._text[:at], self._text[at + len(mark) :]
            return before, mark
        kept = 0 if last else self._kept_back()
        sure = len(self._text) - kept
        before, self._text = self._text[:sure], self._text[sure:]
        return before, ""

    def _kept_back(self) -> int:
        """Count the characters at the end that may begin a mark, with the space before it."""
        text = self._text
        if not self._marks:
            return 0
        longest = max(
            (
                size
                for mark in self._marks
                for size in range(1, min(len(mark), len(text) + 1))
                if text.endswith(mark[:size])
            ),
            default=0,
        )
        bare = text[: len(text) - longest]
        return longest + len(bare) - len(bare.rstrip())

    def _take_call(self, last: bool) -> list[Part] | None:
        """Return what is sure of the calls, or None while nothing is."""
        tools = self._tools
        assert tools is not None
        if self._given:
            return self._more_of_call(last)
        at = self._text.find(tools.end, self._searched) if tools.end else -1
        body = self._text if at < 0 else self._text[:at]
        if at >= 0 or last:
            try:
                calls = list(tools.read(body, self._properties))
            except ValueError:
                pass
            else:
                self._end_call("" if at < 0 else self._text[at + len(tools.end) :])
                return list(calls)
        if (begun := self._begin_stream()) is not None:
            return begun
        if at < 0 and not last:
            self._searched = max(0, len(self._text) - len(tools.end))
            return None
        end = "" if at < 0 else tools.end
        self._end_call(self._text[len(body) + len(end) :])
        return [TextPart(PartKind.CONTENT, f"{tools.begin}{body}{end}")]

    def _begin_stream(self) -> list[Part] | None:
        """Return the beginning of a call that is still written; None where it cannot be told."""
        if self._tools is None or (self._stream is not None and self._stream.wrong):
            return None
        if self._stream is None:
            self._stream, self._streamed = CallStream(self._tools), 0
        stream = self._stream
        found = stream.push(self._text[self._streamed :])
        self._streamed = len(self._text)
        if stream.wrong or not found:
            return None
        self._given, self._text = True, ""
        if stream.over:
            self._end_call(stream.rest)
        return [*found]

    def _more_of_call(self, last: bool) -> list[Part] | None:
        """Return what the text adds to a call of which a part was given out."""
        stream = self._stream
        assert stream is not None
        found: list[Part] = [*stream.push(self._text)]
        self._text = ""
        if not (stream.over or stream.wrong or last):
            return found or None
        rest = stream.rest
        if last and not stream.over:
            found += stream.finish()
        self._end_call(rest if stream.over or stream.wrong else "")
        if stream.wrong:  # not a call's, and not the space behind a mark
            self._trim = False
        return found

    def _end_call(self, rest: str) -> None:
        """Go on with the text behind a call."""
        self._text = rest
        self._searched = 0
        self._stream, self._given = None, False
        self._calling = False
        self._trim = True
