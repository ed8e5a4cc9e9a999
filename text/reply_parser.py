"""The separation of an answer's text, as it grows, into reasoning, content and tool calls."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from baton.text.tool_calls import Properties, ToolCall, ToolFormat


class PartKind(StrEnum):
    REASONING = "reasoning_content"
    CONTENT = "content"


@dataclass(frozen=True)
class TextPart:
    kind: PartKind
    text: str  # what is new


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

    A call that cannot be read is content, as the model wrote it.
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
        self._trim = False  # white space after a mark belongs to it

    def push(self, text: str) -> list[TextPart | ToolCall]:
        self._text += text
        return list(self._read(last=False))

    def finish(self) -> list[TextPart | ToolCall]:
        """Return the parts that were held back, at the end of the answer."""
        return list(self._read(last=True))

    def _read(self, last: bool) -> Iterator[TextPart | ToolCall]:
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

    def _take_call(self, last: bool) -> list[TextPart | ToolCall] | None:
        """Return the calls up to their end mark, or None while that has not come."""
        tools = self._tools
        assert tools is not None
        at = self._text.find(tools.end, self._searched) if tools.end else -1
        if at < 0 and not last:
            self._searched = max(0, len(self._text) - len(tools.end))
            return None
        self._searched = 0
        body = self._text if at < 0 else self._text[:at]
        self._text = "" if at < 0 else self._text[at + len(tools.end) :]
        self._calling = False
        self._trim = True
        try:
            return list(tools.read(body, self._properties))
        except ValueError:
            end = "" if at < 0 else tools.end
            return [TextPart(PartKind.CONTENT, f"{tools.begin}{body}{end}")]
