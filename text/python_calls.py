"""Tool calls in a list as Python writes it: [name(key=value, ...), ...]. LFM2's form."""

import re
from enum import Enum, auto

from baton.text.python_literals import Value, after_space, literal_at
from baton.text.tool_calls import CallMore, ToolCall, ToolFormat, write_json

_NAME = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*\(")
_BEGINNING = re.compile(r"\s*(?:[A-Za-z_][\w.-]*\s*)?")
_KEY = re.compile(r"([A-Za-z_]\w*)\s*=\s*")
_QUOTES = ("'", '"')


class _State(Enum):
    BEGIN = auto()
    NAME = auto()
    ARGUMENTS = auto()
    BETWEEN = auto()
    END = auto()
    OVER = auto()
    WRONG = auto()


class PythonCalls:
    """A reader of such a list. Each call is returned when it is whole."""

    def __init__(self, tools: ToolFormat) -> None:
        self.rest = ""
        """The text that is not read, or cannot be."""
        self._end = tools.end
        self._state = _State.BEGIN
        self._lead = ""  # what was read since the last call's end
        self._name = ""
        self._scanned = 0  # characters of the arguments
        self._depth = 0  # of brackets within them
        self._quote = ""  # of the string that is open in them
        self._escaped = False

    @property
    def over(self) -> bool:
        return self._state is _State.OVER

    @property
    def wrong(self) -> bool:
        return self._state is _State.WRONG

    def push(self, text: str) -> list[ToolCall | CallMore]:
        """Return the calls that the text completes."""
        self.rest += text
        found: list[ToolCall | CallMore] = []
        before: _State | None = None
        while self._state is not before:
            before = self._state
            match self._state:
                case _State.BEGIN:
                    self._mark({"[": _State.NAME})
                case _State.NAME:
                    self._read_name()
                case _State.ARGUMENTS:
                    found += self._arguments()
                case _State.BETWEEN:
                    self._mark({",": _State.NAME, "]": _State.END})
                case _State.END:
                    self._finish()
                case _:
                    pass
        return found

    def finish(self) -> list[ToolCall | CallMore]:
        """Take the end of the answer. `rest` is then no call's."""
        written = self._state in (_State.BEGIN, _State.NAME, _State.ARGUMENTS)
        self.rest = self._lead + self.rest if written else ""
        return []

    def _take(self, count: int) -> None:
        self._lead += self.rest[:count]
        self.rest = self.rest[count:]

    def _fail(self) -> None:
        self._state = _State.WRONG
        self.rest, self._lead = self._lead + self.rest, ""

    def _mark(self, states: dict[str, _State]) -> None:
        """Take a bracket or comma."""
        bare = self.rest.lstrip()
        if not bare:
            return
        if bare[0] not in states:
            self._fail()
            return
        self._take(len(self.rest) - len(bare) + 1)
        self._state = states[bare[0]]

    def _read_name(self) -> None:
        found = _NAME.match(self.rest)
        if found is not None:
            self._name = found[1]
            self._take(found.end())
            self._state = _State.ARGUMENTS
            self._scanned, self._depth, self._quote, self._escaped = 0, 0, "", False
        elif not _BEGINNING.fullmatch(self.rest):
            self._fail()

    def _arguments(self) -> list[ToolCall]:
        for char in self.rest[self._scanned :]:
            if self._quote:
                if self._escaped or char == "\\":
                    self._escaped = not self._escaped
                elif char == self._quote:
                    self._quote = ""
            elif char in _QUOTES:
                self._quote = char
            elif char in "([{":
                self._depth += 1
            elif char in ")]}":
                self._depth -= 1
            if self._depth < 0:
                return self._call()
            self._scanned += 1
        return []

    def _call(self) -> list[ToolCall]:
        """Return the call whose arguments end here."""
        try:
            arguments = write_json(_keywords(self.rest[: self._scanned]))
        except ValueError:
            self._fail()
            return []
        self.rest, self._lead = self.rest[self._scanned + 1 :], ""
        self._state = _State.BETWEEN
        return [ToolCall(self._name, arguments, whole=True)]

    def _finish(self) -> None:
        bare = self.rest.lstrip()
        if bare.startswith(self._end):
            self.rest = bare[len(self._end) :]
            self._state = _State.OVER
        elif not self._end.startswith(bare):
            self._lead = ""
            self._fail()


def _keywords(text: str) -> dict[str, Value]:
    """Return the arguments between a call's brackets. Raises ValueError."""
    found: dict[str, Value] = {}
    at = after_space(text, 0)
    while at < len(text):
        key = _KEY.match(text, at)
        if key is None or key[1] in found:
            raise ValueError("no new name of an argument")
        found[key[1]], at = literal_at(text, key.end())
        at = after_space(text, at)
        if at < len(text) and text[at] != ",":
            raise ValueError("no comma between arguments")
        at = after_space(text, at + 1)
    return found
