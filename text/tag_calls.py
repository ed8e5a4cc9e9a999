"""Tool calls in tags, as Qwen3-Coder, Qwen3.5 and Nemotron 3 write them.

<function=name><parameter=key>value</parameter></function>: the values are no JSON, and may hold
any of these tags themselves.
"""

import re
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

from baton.text.tool_calls import FUNCTION, CallMore, Parameters, ToolCall, ToolFormat, write_json
from baton.text.typed_values import properties_of, typed_value

_PARAMETER, _VALUE_END, _CALL_END = "<parameter=", "</parameter>", "</function>"
_HEAD = re.compile(r"\s*<function=([^<>\n]+)>")
_KEY = re.compile(r"<parameter=([^<>\n]+)>")
_NEXT = f"\n{_PARAMETER}"
_TAG = re.compile(f"</|{_NEXT}")
_MOST_NAME = 256


class _State(Enum):
    HEAD = auto()
    PARAMETERS = auto()
    VALUE = auto()
    BETWEEN = auto()  # another call, or the end
    OVER = auto()
    WRONG = auto()


class TagCalls:
    """A reader of calls in tags. Each call is returned when it is whole.

    A value ends at the first end tag that is followed by what can follow a value. So it may hold
    end tags, unless all of the call's end follows them. It also ends where a further parameter of
    the tool begins on a line of its own. A call with a parameter twice is not read:
    one of the values would be lost.
    """

    def __init__(self, tools: ToolFormat, parameters: Parameters) -> None:
        self.rest = ""
        """The text that is not read, or cannot be."""
        self._end = tools.end
        self._parameters = parameters
        self._state = _State.HEAD
        self._name = ""
        self._given: dict[str, Any] = {}
        self._key = ""
        self._read = ""  # of this call, before `rest`
        self._searched = 0  # characters of the value that its end does not begin in

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
        while True:
            before = self._state, len(self.rest)
            match self._state:
                case _State.HEAD:
                    self._head()
                case _State.PARAMETERS:
                    found += self._parameter()
                case _State.VALUE:
                    self._value()
                case _State.BETWEEN:
                    self._between()
                case _:
                    return found
            if (self._state, len(self.rest)) == before:
                return found

    def finish(self) -> list[ToolCall | CallMore]:
        """Return a call that the end of the answer cut off, as the beginning of JSON that has no
        end. `rest` is then no call's."""
        if self._state is _State.HEAD:
            return []
        cut, self.rest = self.rest, ""
        if self._state is _State.BETWEEN:
            return []
        members = [f"{write_json(key)}: {write_json(value)}" for key, value in self._given.items()]
        if self._state is _State.VALUE:
            text = cut[: self._searched].removeprefix("\n").removesuffix("\n")
            value = typed_value(text, self._key, self._schema)
            shown = write_json(value)[:-1] if isinstance(value, str) else text
            members.append(f"{write_json(self._key)}: {shown}")
        return [ToolCall(self._name, "{" + ", ".join(members))]

    @property
    def _schema(self) -> Mapping[str, Any]:
        return self._parameters.get(self._name, {})

    def _take(self, count: int) -> None:
        self._read += self.rest[:count]
        self.rest = self.rest[count:]

    def _fail(self) -> None:
        self._state = _State.WRONG
        self.rest = self._read + self.rest

    def _head(self) -> None:
        found = _HEAD.match(self.rest)
        if found is not None:
            self._name, self._given, self._read = found[1].strip(), {}, ""
            self._take(found.end())
            self._state = _State.PARAMETERS
        elif not _goes_on(self.rest.lstrip(), FUNCTION):
            self._fail()

    def _parameter(self) -> list[ToolCall]:
        bare = self.rest.lstrip()
        space = len(self.rest) - len(bare)
        key = _KEY.match(bare)
        if key is not None and key[1].strip() in self._given:
            self._fail()
        elif key is not None:
            self._key, self._searched = key[1].strip(), 0
            self._take(space + key.end())
            self._state = _State.VALUE
        elif bare.startswith(_CALL_END) or bare.startswith(self._end):
            self.rest = bare.removeprefix(_CALL_END)
            self._state = _State.BETWEEN
            return [ToolCall(self._name, write_json(self._given), whole=True)]
        elif not (
            _goes_on(bare, _PARAMETER) or _CALL_END.startswith(bare) or self._end.startswith(bare)
        ):
            self._fail()
        return []

    def _value(self) -> None:
        """Take the value, once its end is there."""
        while (found := _TAG.search(self.rest, self._searched)) is not None:
            at = self._searched = found.start()
            behind = self._behind_value(at)
            if behind is None:
                return
            if behind >= 0:
                text = self.rest[:at].removeprefix("\n").removesuffix("\n")
                self._given[self._key] = typed_value(text, self._key, self._schema)
                self._take(behind)
                self._state = _State.PARAMETERS
                return
            self._searched = at + 1
        self._searched = max(self._searched, len(self.rest) - _beginning(self.rest))

    def _behind_value(self, at: int) -> int | None:
        """Return where to go on if the value ends at this place; -1: it does not; None: it cannot
        be told yet."""
        if self.rest.startswith(_NEXT, at):
            return self._behind_open_value(at + 1)
        # A model may leave the end tag of a value out: then the end of all of the call is there.
        for tag, behind, followers in (
            (_VALUE_END, at + len(_VALUE_END), (_PARAMETER, _CALL_END, self._end)),
            (_CALL_END, at, (self._end,)),
        ):
            begun = self.rest[at : at + len(tag)]
            if begun == tag:
                next_text = self.rest[at + len(tag) :].lstrip()
                if any(next_text.startswith(each) for each in followers):
                    return behind
                return None if any(each.startswith(next_text) for each in followers) else -1
            if tag.startswith(begun):
                return None
        return -1

    def _behind_open_value(self, at: int) -> int | None:
        """Return the place, if another parameter of the tool begins there, on its own line. Models
        leave the end tag of a value out before it too."""
        key = _KEY.match(self.rest, at)
        if key is None:
            return None if _goes_on(self.rest[at:], _PARAMETER) else -1
        named = key[1].strip()
        others = named in properties_of(self._schema)
        return at if others and named != self._key and named not in self._given else -1

    def _between(self) -> None:
        bare = self.rest.lstrip()
        if bare.startswith(self._end):
            self.rest = bare[len(self._end) :]
            self._state = _State.OVER
        elif bare.startswith(FUNCTION):
            self._read, self._state = "", _State.HEAD
        elif not (FUNCTION.startswith(bare) or self._end.startswith(bare)):
            self._read = ""
            self._fail()


def _goes_on(text: str, tag: str) -> bool:
    """Return whether a text is the beginning of a tag with a name, that may still end."""
    if not text.startswith(tag):
        return tag.startswith(text)
    name = text[len(tag) :]
    return len(name) <= _MOST_NAME and not any(char in "<>\n" for char in name)


def _beginning(text: str) -> int:
    """Count the characters at the end that an end tag, or the next parameter, may begin with."""
    sizes = range(len(_NEXT) - 1, 0, -1)
    return next((size for size in sizes if text.endswith((_NEXT[:size], "</"[:size]))), 0)
