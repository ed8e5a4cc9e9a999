"""Tool calls in a model's own form, whose arguments are given out as the model writes them."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from baton.text.json_scanner import JsonScanner
from baton.text.tool_calls import CallMore, JsonInside, ToolCall, ToolFormat, is_unicode

MOST_CHARS = 2048
"""The most characters of a call besides its arguments; a longer one is read when it is whole."""


@dataclass(frozen=True)
class _Form:
    """The text round the arguments of each call."""

    openings: tuple[re.Pattern[str], ...]  # up to the arguments' bracket, with the group `name`
    closing: re.Pattern[str]
    next: str  # what the call after this one begins with; "": there may be a list, with commas


_OTHER = r'\s*,\s*"(?!name"|arguments"|parameters")[^"\\]*"\s*:\s*(?:"(?:[^"\\]|\\.)*"|[-+\w.]+)'
_JSON = _Form(
    (
        re.compile(
            r'\s*\{\s*"name"\s*:\s*(?P<name>"(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*'
        ),
    ),
    re.compile(rf"(?:{_OTHER})*\s*\}}"),
    "",
)
_DEEPSEEK = _Form(
    (
        re.compile(r"\s*<｜tool▁call▁begin｜>(?P<name>[^<>{}`]*)<｜tool▁sep｜>\s*"),
        re.compile(r"\s*<｜tool▁call▁begin｜>function<｜tool▁sep｜>(?P<name>[^<>{}`]*)```json\s*"),
    ),
    re.compile(r"\s*(?:```)?\s*<｜tool▁call▁end｜>"),
    "<｜tool▁call▁begin｜>",
)


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

    What it has returned stays true: arguments are given out only as far as they are JSON, with the
    last number or word once it has ended.
    """

    def __init__(self, tools: ToolFormat) -> None:
        self.rest = ""
        """The text behind the end mark, or, where it is wrong, the text that could not be read."""
        self._form = _DEEPSEEK if tools.inside is JsonInside.NONE else _JSON
        self._end = tools.end
        self._state = _State.BEGIN
        self._list = False
        self._json = JsonScanner()
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
                found[-1] = ToolCall(last.name, last.arguments + part.arguments)
            else:
                found.append(part)
        return found

    def finish(self) -> list[ToolCall | CallMore]:
        """Return what was held back, at the end of the answer. The rest is no call's."""
        held, self._held = self._held, ""
        return [CallMore(held)] if held else []

    def _read(self) -> Iterator[ToolCall | CallMore]:
        before: _State | None = None
        while self._state is not before:
            before = self._state
            match self._state:
                case _State.BEGIN:
                    self._begin()
                case _State.OPENING:
                    if (call := self._opened()) is not None:
                        yield call
                case _State.ARGUMENTS:
                    if arguments := self._arguments():
                        yield CallMore(arguments)
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
            self._list, self.rest = True, bare[1:]
        self._state = _State.OPENING

    def _opened(self) -> ToolCall | None:
        """Return the call whose arguments begin, or None while none do."""
        for opening in self._form.openings:
            found = opening.match(self.rest)
            if found is None or self.rest[found.end() : found.end() + 1] != "{":
                continue
            name = self._name(found["name"])
            if name is None:
                break
            self.rest = self.rest[found.end() :]
            self._state, self._json = _State.ARGUMENTS, JsonScanner()
            return ToolCall(name, "")
        else:
            if len(self.rest) <= MOST_CHARS:
                return None
        self._state = _State.WRONG
        return None

    def _name(self, written: str) -> str | None:
        if self._form.next:
            return written.strip()
        try:
            name: str = json.loads(written)
        except ValueError:
            return None
        return name if is_unicode(name) else None

    def _arguments(self) -> str:
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
        return read[:sure]

    def _close(self) -> None:
        found = self._form.closing.match(self.rest)
        if found is not None:
            self.rest = self.rest[found.end() :]
            self._state = _State.BETWEEN
        elif len(self.rest) > MOST_CHARS or (self._end and self._end in self.rest):
            self._state = _State.WRONG

    def _between(self) -> None:
        bare, following = self.rest.lstrip(), self._form.next
        if self._list:
            if bare:
                states = {",": _State.OPENING, "]": _State.END}
                self._state = states.get(bare[0], _State.WRONG)
                self.rest = self.rest if self.wrong else bare[1:]
        elif following and bare.startswith(following):
            self._state = _State.OPENING
        elif not following or not following.startswith(bare):
            self._state = _State.END

    def _finish(self) -> None:
        bare = self.rest.lstrip()
        if self._end and bare.startswith(self._end):
            self.rest = bare[len(self._end) :]
            self._state = _State.OVER
        elif not self._end.startswith(bare):
            self._state = _State.WRONG
