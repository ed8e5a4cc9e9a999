"""Tool calls whose arguments are JSON, which are given out as the model writes them."""

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum, auto

from baton.text.json_scanner import JsonScanner
from baton.text.tool_calls import (
    CallMore,
    CallStyle,
    ToolCall,
    ToolFormat,
    is_unicode,
    read_calls,
)

MOST_CHARS = 2048
"""The most characters of a call before its arguments, if those are given out as they come."""


@dataclass(frozen=True)
class _Form:
    """The text round the arguments of each call."""

    openings: tuple[re.Pattern[str], ...]  # up to the arguments' bracket, with the group `name`
    next: str = ""  # what each call begins with; "": there may be a list, with commas
    closers: tuple[str, ...] = ()  # what follows the arguments; all but the last may be left out


_JSON = _Form(
    (
        re.compile(
            r'\s*\{\s*"name"\s*:\s*(?P<name>"(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*'.replace(
                r"\s", r"[ \t\n\r]"
            )
        ),
    ),
)
_DEEPSEEK = _Form(
    (
        re.compile(r"\s*<｜tool▁call▁begin｜>(?P<name>[^<>{}`]*)<｜tool▁sep｜>\s*"),
        re.compile(r"\s*<｜tool▁call▁begin｜>function<｜tool▁sep｜>(?P<name>[^<>{}`]*)```json\s*"),
    ),
    "<｜tool▁call▁begin｜>",
    ("```", "<｜tool▁call▁end｜>"),
)
_KIMI = _Form(
    (
        re.compile(
            r"\s*<\|tool_call_begin\|>\s*(?:functions\.)?(?P<name>[^<>{}:]*?)(?::\d+)?\s*"
            r"<\|tool_call_argument_begin\|>\s*"
        ),
    ),
    "<|tool_call_begin|>",
    ("<|tool_call_end|>",),
)
_FORMS = {CallStyle.JSON: _JSON, CallStyle.DEEPSEEK: _DEEPSEEK, CallStyle.KIMI: _KIMI}


class _State(Enum):
    """The part of the calls that is read."""

    BEGIN = auto()  # a bracket of a list, or the first call
    OPENING = auto()
    ARGUMENTS = auto()
    CLOSING = auto()
    BETWEEN = auto()  # another call, or the end
    END = auto()  # of all: the mark is next
    OVER = auto()
    WRONG = auto()


class CallStream:
    """A reader of the text between a format's marks.

    What it returns depends on the text alone, not on the pieces that it came in, and stays true:
    arguments are given out only as far as they are JSON, with the last number or word once it has
    ended.
    """

    def __init__(
        self, tools: ToolFormat, style: CallStyle, only: Collection[str] | None = None
    ) -> None:
        """only: the names that a call may have; None: any."""
        self.rest = ""
        """The text behind the end mark, or, where it is wrong, the text that could not be read."""
        self._form = _FORMS[style]
        self._end = tools.end
        self._only = only
        self._state = _State.BEGIN
        self._list = False
        self._lead = ""  # what was read since the last call's end
        self._json = JsonScanner()
        self._scanned = 0  # characters of `rest` that the scanner has, where it reads a whole call
        self._held = ""  # of the arguments, read and not given out

    @property
    def over(self) -> bool:
        return self._state is _State.OVER

    @property
    def wrong(self) -> bool:
        return self._state is _State.WRONG

    def push(self, text: str) -> list[ToolCall | CallMore]:
        """Return what the text adds, the parts of one call joined."""
        self.rest += text
        found: list[ToolCall | CallMore] = []
        for part in self._read():
            last = found[-1] if found else None
            if isinstance(part, CallMore) and isinstance(last, ToolCall):
                found[-1] = ToolCall(last.name, last.arguments + part.arguments, part.whole)
            else:
                found.append(part)
        return found

    def finish(self) -> list[ToolCall | CallMore]:
        """Return what was held back, at the end of the answer. `rest` is then no call's."""
        held, self._held = self._held, ""
        opening = self._state in (_State.BEGIN, _State.OPENING)
        self.rest = self._lead + self.rest if opening else ""
        return [CallMore(held)] if held else []

    def _read(self) -> Iterator[ToolCall | CallMore]:
        before: _State | None = None
        while self._state is not before:
            before = self._state
            match self._state:
                case _State.BEGIN:
                    self._begin()
                case _State.OPENING:
                    yield from self._opened()
                case _State.ARGUMENTS:
                    more = self._arguments()
                    if more.arguments or more.whole:
                        yield more
                case _State.CLOSING:
                    self._close()
                case _State.BETWEEN:
                    self._between()
                case _State.END:
                    self._finish()
                case _:
                    return

    def _begin(self) -> None:
        bare = self.rest.lstrip()
        if not bare:
            return
        if not self._form.next and bare[0] == "[":
            self._list = True
            self._skip(bare, 1)
        self._state = _State.OPENING

    def _skip(self, bare: str, count: int) -> None:
        """Leave out the white space before `bare`, and its first characters."""
        self._lead += self.rest[: len(self.rest) - len(bare) + count]
        self.rest = bare[count:]

    def _fail(self) -> None:
        self._state = _State.WRONG
        self.rest, self._lead = self._lead + self.rest, ""

    def _opened(self) -> Iterator[ToolCall]:
        """Yield the call whose arguments begin, or, where they are not last in it, a whole one."""
        for opening in self._form.openings:
            found = opening.match(self.rest, 0, MOST_CHARS)
            if found is None or self.rest[found.end() : found.end() + 1] != "{":
                continue
            name = self._name(found["name"])
            if name is None:
                self._fail()
                return
            self.rest = self.rest[found.end() :]
            self._lead, self._scanned = "", 0
            self._state, self._json = _State.ARGUMENTS, JsonScanner()
            yield ToolCall(name, "")
            return
        if not self._form.next:
            yield from self._whole_call()
            return
        bare, mark = self.rest.lstrip(), self._form.next
        begun = bare.startswith(mark) or mark.startswith(bare)
        ended = self._form.closers[-1] in self.rest or self._end in self.rest
        if not begun or ended or len(self.rest) > MOST_CHARS:
            self._fail()

    def _whole_call(self) -> Iterator[ToolCall]:
        """Yield the call that ends here, if its arguments could not be given out on the way."""
        try:
            for char in self.rest[self._scanned :]:
                self._json.push(char)
                self._scanned += 1
                if self._json.done:
                    break
            if not self._json.done:
                return
            (call,) = read_calls(self.rest[: self._scanned])
        except ValueError:
            self._fail()
            return
        if self._only is not None and call.name not in self._only:
            self._fail()
            return
        self.rest, self._lead = self.rest[self._scanned :], ""
        self._state, self._json, self._scanned = _State.BETWEEN, JsonScanner(), 0
        yield call

    def _name(self, written: str) -> str | None:
        name = written.strip()
        if not self._form.next:
            try:
                name = json.loads(written)
            except ValueError:
                return None
        allowed = self._only is None or name in self._only
        return name if allowed and is_unicode(name) else None

    def _arguments(self) -> CallMore:
        """Return the arguments as far as they are sure."""
        scanner, taken = self._json, 0
        try:
            for char in self.rest:
                scanner.push(char)
                taken += 1
                if scanner.done:
                    self._state = _State.CLOSING
                    break
        except ValueError:
            self._state = _State.WRONG
        read, behind = self._held + self.rest[:taken], self.rest[taken:]
        sure = len(read) - scanner.held
        self._held, self.rest = read[sure:], behind
        if self.wrong:
            self._held, self.rest = "", read[sure:] + behind
        elif scanner.done:
            self._json = self._after_member()
        return CallMore(read[:sure], whole=scanner.done and not self.wrong)

    def _after_member(self) -> JsonScanner:
        """Return a scanner of what may follow the arguments in their object: its end, or more."""
        scanner = JsonScanner()
        for char in '{"":{}':
            scanner.push(char)
        return scanner

    def _close(self) -> None:
        if self._form.next:
            behind = _behind(self.rest, self._form.closers)
            if behind is not None:
                self.rest = behind
                self._state = _State.BETWEEN
            elif not _may_become(self.rest, self._form.closers):
                self._fail()
            return
        try:
            for number, char in enumerate(self.rest):
                self._json.push(char)
                if self._json.done:
                    self.rest, self._lead = self.rest[number + 1 :], ""
                    self._state, self._json = _State.BETWEEN, JsonScanner()
                    return
        except ValueError:
            self._fail()
            return
        self._lead, self.rest = self._lead + self.rest, ""

    def _between(self) -> None:
        bare, following = self.rest.lstrip(), self._form.next
        if not bare:
            return
        if following:
            if bare.startswith(following):
                self._state = _State.OPENING
            elif not following.startswith(bare):
                self._state = _State.END
        elif self._list and bare[0] in ",]":
            self._state = _State.OPENING if bare[0] == "," else _State.END
            self._skip(bare, 1)
        elif not self._list and bare[0] in ",;":  # Llama's calls have semicolons between them
            self._skip(bare, 1)
            self._state = _State.OPENING
        elif not self._list and bare[0] == "{":
            self._state = _State.OPENING
        elif self._list:
            self._fail()
        else:
            self._state = _State.END

    def _finish(self) -> None:
        bare = self.rest.lstrip()
        if bare.startswith(self._end):
            self.rest = bare[len(self._end) :] if self._end else self.rest
            self._state = _State.OVER
        elif not self._end.startswith(bare):
            self._lead = ""
            self._fail()


def _behind(text: str, marks: tuple[str, ...]) -> str | None:
    """Return the text behind these marks in a row, of which all but the last may be left out; None
    if they are not there."""
    bare = text.lstrip()
    for mark in marks[:-1]:
        bare = bare.removeprefix(mark).lstrip()
    return bare.removeprefix(marks[-1]) if bare.startswith(marks[-1]) else None


def _may_become(text: str, marks: tuple[str, ...]) -> bool:
    """Return whether a text is the beginning of such marks."""
    bare = text.lstrip()
    for mark in marks:
        if mark.startswith(bare):
            return True
        bare = bare.removeprefix(mark).lstrip()
    return False
