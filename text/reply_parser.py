"""The separation of an answer's text, as it grows, into reasoning, content and tool calls."""

import re
from collections.abc import Generator, Iterable, Iterator
from enum import Enum, StrEnum, auto
from functools import lru_cache
from typing import NamedTuple

from baton.text.call_readers import CallReader, bare_call_begins, call_begins, call_reader
from baton.text.call_trial import CallTrial, TrialVerdict
from baton.text.reasoning import ReasoningFormat, ReasoningState
from baton.text.tool_calls import (
    FUNCTION,
    CallMore,
    CallStyle,
    Parameters,
    ToolCall,
    ToolFormat,
)


class PartKind(StrEnum):
    REASONING = "reasoning_content"
    CONTENT = "content"


_KINDS = PartKind.CONTENT, PartKind.REASONING  # of text outside and inside reasoning


class TextPart(NamedTuple):
    """New text of an answer. A tuple, because most tokens make one."""

    kind: PartKind
    text: str


Part = TextPart | ToolCall | CallMore


_LOOK = 4096
"""The characters from a mark on that tell whether a call begins."""


class _Act(Enum):
    """The meanings that a mark may have at its place."""

    DROP = auto()  # it is not shown, and means nothing here
    CLOSE = auto()  # reasoning ends
    CALL = auto()  # calls begin
    BARE_CALL = auto()  # calls begin with the mark itself
    END = auto()  # of calls that could not be read


class ReplyParser:
    """A parser of text that arrives in pieces. The beginning of a mark is held back.

    Reasoning begins where the prompt or the first text of the answer begins it, and nowhere else: a
    later mark is text.

    What all pieces and the end make depends on the text alone. The arguments of a call are given
    out as they are written, where the form has them as JSON. What cannot be read as a call is
    content, without the marks round it. A call within reasoning counts once it is whole, if it is
    one of an offered tool.
    """

    def __init__(
        self,
        reasoning: ReasoningFormat | None,
        tools: ToolFormat | None,
        *,
        thinking: ReasoningState = ReasoningState.FREE,
        parameters: Parameters | None = None,
    ) -> None:
        """thinking: the state of reasoning where the answer begins. parameters: the offered
        tools'."""
        self._reasoning = reasoning
        self._tools = tools
        self._thinking = reasoning is not None and thinking is ReasoningState.OPEN
        # The first mark of reasoning may come. Models write it a second time behind the template's.
        self._may_begin = reasoning is not None and thinking is not ReasoningState.CLOSED
        self._parameters = parameters or {}
        self._hidden: tuple[str, ...] = ()
        self._text = ""  # not given out yet
        self._reader: CallReader | None = None  # of the calls that are read
        self._marked = False  # those calls began with a mark
        self._trial: CallTrial | None = None
        self._broken = False  # a call went wrong, whose last mark has not come
        self._begun = False  # there was content, or a call
        self._trim = False  # white space after a mark belongs to it
        self._known_marks: dict[tuple[bool, bool], _Marks] = {}  # by `_thinking` and `_broken`

    @property
    def marks(self) -> tuple[str, ...]:
        """Return all marks, which the text must have even if they are special tokens."""
        reasoning, tools = self._reasoning, self._tools
        marks = () if reasoning is None else (reasoning.begin, reasoning.end)
        return marks if tools is None else (*marks, *tools.marks)

    def hide(self, marks: Iterable[str]) -> None:
        """Leave these marks out of all text that is given out: they are special tokens."""
        self._hidden = tuple(marks)
        self._known_marks.clear()

    def push(self, text: str) -> list[Part]:
        if self._is_plain(text):
            self._begun = self._begun or not self._thinking
            return [TextPart(_KINDS[self._thinking], text)]
        found: list[Part] = []
        # In small pieces, so that reading on behind a mark copies little.
        for at in range(0, len(text), _LOOK):
            self._text += text[at : at + _LOOK]
            found += self._read(last=False)
        return found

    def finish(self) -> list[Part]:
        """Return the parts that were held back, at the end of the answer."""
        return list(self._read(last=True))

    def _is_plain(self, text: str) -> bool:
        """Return True for text that reading would give out whole: most tokens have such."""
        if not 0 < len(text) <= _LOOK or self._text or text[-1].isspace():
            return False
        if self._reader or self._trial or self._may_begin or self._trim:
            return False
        return (self._begun or not self._may_be_bare) and not self._marks().initials.search(text)

    def _read(self, last: bool) -> Iterator[Part]:
        while True:
            if self._trim:
                self._text = self._text.lstrip()
                self._trim = not self._text
            if self._reader is not None:
                yield from self._take_calls(self._reader, last)
                if self._reader is not None:
                    return
            elif self._trial is not None:
                verdict = self._trial.push(self._text, last)
                if verdict is TrialVerdict.OPEN:
                    self._text = ""
                    return
                yield from self._end_trial(self._trial, verdict)
            elif self._may_begin:
                if not self._begin_reasoning(last):
                    return
            elif self._may_be_bare and not last and not self._text.lstrip():
                return
            elif self._may_be_bare and self._text.lstrip().startswith("{"):
                self._begin_call("", self._text, bare=True)
            else:
                if (yield from self._take_text(last)):
                    return

    @property
    def _may_be_bare(self) -> bool:
        """Return whether the answer may begin with a call that has no mark and no tag."""
        tools = self._tools
        begins = tools is not None and tools.bare and CallStyle.TAGS not in tools.styles
        return begins and not self._begun and not self._thinking and bool(self._parameters)

    def _begin_reasoning(self, last: bool) -> bool:
        """Take the mark of reasoning if the answer begins with it. Return False until that is
        known."""
        assert self._reasoning is not None
        begin, bare = self._reasoning.begin, self._text.lstrip()
        if not last and len(bare) < len(begin) and begin.startswith(bare):
            return False
        self._may_begin = False
        if bare.startswith(begin):
            self._text, self._thinking, self._trim = bare[len(begin) :], True, True
        return True

    def _marks(self) -> "_Marks":
        """Return the marks that have a meaning at this place."""
        place = self._thinking, self._broken
        known = self._known_marks.get(place)
        if known is None:
            known = self._known_marks[place] = _known(tuple(self._acts().items()))
        return known

    def _acts(self) -> dict[str, _Act]:
        marks = dict.fromkeys(self._hidden, _Act.DROP)
        tools, reasoning = self._tools, self._reasoning
        if reasoning is not None and self._thinking:
            marks[reasoning.end] = _Act.CLOSE
        if tools is not None:
            if self._broken:
                marks |= dict.fromkeys(tools.inner, _Act.DROP)
            if self._broken and tools.end:
                marks[tools.end] = _Act.END
            marks[tools.begin] = _Act.CALL
            if tools.bare and CallStyle.TAGS in tools.styles:
                marks[FUNCTION] = _Act.BARE_CALL
        return marks

    def _take_text(self, last: bool) -> Generator[Part, None, bool]:
        """Take text up to a mark, and the mark. Return True if more text must come first."""
        marks, text, shown = self._marks(), self._text, ""
        begin = searched = 0  # of what is not in `shown`, and of what no mark was found in
        while (found := marks.any.search(text, searched)) is not None:
            mark, at, searched = found[0], found.start(), found.end()
            act, before = marks.acts[mark], text[begin:at]
            if act is _Act.CLOSE:
                yield from self._shown(shown + before.rstrip())
                self._thinking = False
                self._text, self._trim = text[searched:], True
                return False
            if act in (_Act.CALL, _Act.BARE_CALL):
                begins = self._call_begins(mark, text, at, last)
                if begins is not False:
                    yield from self._shown(shown + before.rstrip())
                    bare = act is _Act.BARE_CALL
                    begun = text[at if bare else searched :]
                    if begins and self._begin_call("" if bare else mark, begun, bare=bare):
                        return False
                    if last:  # the mark is the last of the answer
                        self._text, self._broken = begun, True
                        return False
                    self._text = before[len(before.rstrip()) :] + text[at:]
                    return True
                if mark not in self._hidden:
                    continue
            shown += before
            begin = searched
            if act is _Act.END:
                self._broken = False
                marks = self._marks()
        sure = len(text) - (0 if last else marks.kept_back(text[searched:]))
        self._text = text[sure:]
        yield from self._shown(shown + text[begin:sure])
        return True

    def _call_begins(self, mark: str, text: str, at: int, last: bool) -> bool | None:
        """Return whether a call begins with the mark at this place; None: it cannot be told yet."""
        assert self._tools is not None
        if mark == FUNCTION:
            found = bare_call_begins(self._tools, text[at : at + _LOOK], self._parameters)
            return False if found is None and last else found
        return call_begins(self._tools, text[at + len(mark) : at + len(mark) + _LOOK])

    def _begin_call(self, mark: str, begun: str, *, bare: bool) -> bool:
        """Read what follows as a call. Return False if its form cannot be told yet."""
        assert self._tools is not None
        reader = call_reader(self._tools, begun, self._parameters, bare=bare)
        if reader is None:
            return False
        self._text = begun
        if self._thinking and self._reasoning is not None:
            self._trial = CallTrial(mark, reader, self._reasoning.end, self._parameters.keys())
        else:
            self._reader, self._begun, self._broken = reader, True, False
            self._marked = bool(mark)
        return True

    def _take_calls(self, reader: CallReader, last: bool) -> Iterator[Part]:
        """Give the text to the reader of calls."""
        yield from reader.push(self._text)
        self._text = ""
        if last and not (reader.over or reader.wrong):
            yield from reader.finish()
        elif not (reader.over or reader.wrong):
            return
        self._text, self._reader = reader.rest, None
        self._trim = reader.over
        self._broken = self._marked and not reader.over
        lead, tag, behind = self._text.partition(FUNCTION)
        if not reader.over and tag and not lead.strip():
            self._text = behind  # what began with this tag could not be read
            yield from self._shown(lead + tag)

    def _end_trial(self, trial: CallTrial, verdict: TrialVerdict) -> Iterator[Part]:
        """Go on behind a call within reasoning, or with its text as reasoning."""
        self._trial = None
        if verdict is TrialVerdict.CALL:
            yield from trial.found
            self._reader, self._marked = trial.reader, bool(trial.mark)
            self._text = trial.text[trial.read :]
            return
        mark = "" if trial.mark in self._hidden else trial.mark
        if verdict is TrialVerdict.TEXT:
            # The text begins with the tag itself where the call has no mark.
            skipped = 0 if trial.mark else len(FUNCTION)
            self._text = trial.text[skipped:]
            yield from self._shown(mark + trial.text[:skipped])
            return
        end = trial.closed_at if trial.closed_at >= 0 else len(trial.text)
        text, self._text = trial.text[:end], trial.text[end:]
        for hidden in self._hidden:
            text = text.replace(hidden, "")
        yield from self._shown((mark + text).rstrip() if self._text else mark + text)

    def _shown(self, text: str) -> Iterator[Part]:
        if text:
            self._begun = self._begun or not (self._thinking or text.isspace())
            yield TextPart(_KINDS[self._thinking], text)


class _Marks:
    """Marks and what they mean, in the forms in which they are looked for."""

    def __init__(self, marks: Iterable[tuple[str, _Act]]) -> None:
        self.acts = acts = dict(marks)
        self.any = _any_of(tuple(acts))
        self.initials = _any_of(tuple({mark[0] for mark in acts}))
        """A text without these has no mark, and none begins at its end."""
        self._beginnings = {mark[:size] for mark in acts for size in range(1, len(mark))}
        self._longest = max(map(len, self._beginnings), default=0)

    def kept_back(self, text: str) -> int:
        """Count the characters at the end that may begin a mark, with the space before it."""
        if not self.acts:
            return 0
        sizes = range(min(self._longest, len(text)), 0, -1)
        longest = next((n for n in sizes if text[len(text) - n :] in self._beginnings), 0)
        bare = text[: len(text) - longest]
        return longest + len(bare) - len(bare.rstrip())


_known = lru_cache(maxsize=64)(_Marks)


@lru_cache(maxsize=64)
def _any_of(marks: tuple[str, ...]) -> re.Pattern[str]:
    if not marks:
        return re.compile("(?!)")  # found nowhere
    return re.compile("|".join(map(re.escape, sorted(marks, key=len, reverse=True))))
