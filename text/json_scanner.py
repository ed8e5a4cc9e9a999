"""JSON that is read as it grows."""

import math
import re
from enum import Enum, auto

MOST_DEEP = 400
"""The deepest nesting; Python's own reader ends at somewhat more."""
MOST_DIGITS = 4000
"""The longest number; Python reads integers of 4,300 digits."""
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORDS = {"true", "false", "null"}
_SPACE = " \t\n\r"
_ESCAPES = '"\\/bfnrt'
_HEX = "0123456789abcdefABCDEF"


class _Next(Enum):
    """The kinds of what may come next outside of strings, numbers and words."""

    VALUE = auto()
    FIRST_KEY = auto()  # or the object's end
    KEY = auto()
    COLON = auto()
    FIRST_ITEM = auto()  # or the list's end
    MORE = auto()  # a comma or the end of what is open


class JsonScanner:
    """A reader of one JSON object or list, character by character.

    It accepts what `json.loads` does, but for NaN and infinite numbers.
    """

    def __init__(self) -> None:
        self.held = 0
        """Characters at the end that may still become part of something wrong."""
        self.done = False
        """True once the object or list has ended."""
        self._open: list[str] = []  # the brackets
        self._next = _Next.VALUE
        self._token = ""  # of a number or word
        self._in_string = False
        self._escape = ""  # the beginning of an escape
        self._is_key = False

    def push(self, char: str) -> None:
        """Take the next character. Raises ValueError for one that cannot follow."""
        if self._in_string:
            self._string(char)
        elif self._token and (char.isalnum() or char in "+-."):
            self._grow(char)
        else:
            if self._token:
                self._end_token()
            if char not in _SPACE:
                self._mark(char)

    def _mark(self, char: str) -> None:
        expected = self._next
        if self.done:
            raise ValueError("text behind the end")
        if not self._open and char not in "{[":
            raise ValueError("neither an object nor a list")
        if char in "}]":
            empty = _Next.FIRST_KEY if char == "}" else _Next.FIRST_ITEM
            opening = "{" if char == "}" else "["
            if expected not in (empty, _Next.MORE) or self._open[-1] != opening:
                raise ValueError(f"unexpected {char}")
            self._open.pop()
            self._next = _Next.MORE
            self.done = not self._open
        elif char == ",":
            self._expect(_Next.MORE)
            self._next = _Next.KEY if self._open[-1] == "{" else _Next.VALUE
        elif char == ":":
            self._expect(_Next.COLON)
            self._next = _Next.VALUE
        elif char == '"':
            self._is_key = expected in (_Next.FIRST_KEY, _Next.KEY)
            if not self._is_key:
                self._expect(_Next.VALUE, _Next.FIRST_ITEM)
            self._in_string = True
        else:
            self._expect(_Next.VALUE, _Next.FIRST_ITEM)
            if char in "{[":
                if len(self._open) == MOST_DEEP:
                    raise ValueError("nested too deep")
                self._open.append(char)
                self._next = _Next.FIRST_KEY if char == "{" else _Next.FIRST_ITEM
            else:
                self._grow(char)

    def _expect(self, *allowed: _Next) -> None:
        if self._next not in allowed:
            raise ValueError("not what JSON has here")

    def _string(self, char: str) -> None:
        if self._escape:
            self._escape += char
            if len(self._escape) == 2 and char in _ESCAPES:
                self._escape = ""
            elif self._escape[1] != "u" or (len(self._escape) > 2 and char not in _HEX):
                raise ValueError(f"{self._escape} is no escape")
            elif len(self._escape) == 6:
                self._escape = ""
        elif char == "\\":
            self._escape = char
        elif char == '"':
            self._in_string = False
            self._next = _Next.COLON if self._is_key else _Next.MORE
        elif char < " ":
            raise ValueError("a control character in a string")

    def _grow(self, char: str) -> None:
        if len(self._token) == MOST_DIGITS:
            raise ValueError("a number too long")
        self._token += char
        self.held = len(self._token)

    def _end_token(self) -> None:
        token = self._token
        number = _NUMBER.fullmatch(token) and math.isfinite(float(token))
        if not number and token not in _WORDS:
            raise ValueError(f"{token[:20]} is no value")
        self._token, self.held = "", 0
        self._next = _Next.MORE
