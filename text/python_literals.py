"""Values as Python and JSON write them, read without Python's own parser.

Models write both: `True` beside `true`, and strings in either quotes. Python's parser warns of
escapes that it does not know, and refuses a line break in a string.
"""

import re
from collections.abc import Callable

from baton.text.json_scanner import MOST_DEEP

Value = str | int | float | bool | None | list["Value"] | dict[str, "Value"]
_WORDS: dict[str, Value] = {
    "true": True, "True": True, "false": False, "False": False, "null": None, "None": None,
}  # fmt: skip
_WORD = re.compile(r"[A-Za-z_]\w*")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_SPACE = re.compile(r"\s*")
_ESCAPES = {
    "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "/": "/", "\\": "\\",
    "'": "'", '"': '"', "\n": "",
}  # fmt: skip
_CODES = {"x": 2, "u": 4, "U": 8}
_CLOSERS = {"(": ")", "[": "]"}


def read_literal(text: str) -> Value:
    """Return the only value of a text. Raises ValueError."""
    value, end = literal_at(text, after_space(text, 0))
    if after_space(text, end) != len(text):
        raise ValueError("text behind the value")
    return value


def read_number(text: str) -> int | float:
    """Return a number in any spelling: `.5`, `+5`, `1.`, but not NaN. Raises ValueError."""
    if not _NUMBER.fullmatch(text):
        raise ValueError("no number")
    try:
        return int(text)
    except ValueError:
        value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError("a number too large")
    return value


def after_space(text: str, at: int) -> int:
    """Return the place of the next character that is no white space."""
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def literal_at(text: str, at: int, deep: int = 0) -> tuple[Value, int]:
    """Return the value that begins at a place, and the place behind it. Raises ValueError."""
    if deep > MOST_DEEP // 4:
        raise ValueError("nested too deep")
    char = text[at : at + 1]
    if char in ("'", '"'):
        return _string(text, at)
    if char == "{":
        return _object(text, at + 1, deep + 1)
    if char in _CLOSERS:
        items: list[Value] = []

        def item(at: int) -> int:
            value, end = literal_at(text, at, deep + 1)
            items.append(value)
            return end

        return items, _entries(text, at + 1, _CLOSERS[char], item)
    if (word := _WORD.match(text, at)) is not None:
        if word[0] not in _WORDS:
            raise ValueError(f"{word[0][:20]} is no value")
        return _WORDS[word[0]], word.end()
    if (number := _NUMBER.match(text, at)) is None:
        raise ValueError("no value")
    return read_number(number[0]), number.end()


def _object(text: str, at: int, deep: int) -> tuple[Value, int]:
    members: dict[str, Value] = {}

    def member(at: int) -> int:
        key, end = literal_at(text, at, deep)
        if not isinstance(key, str):
            raise ValueError("a key is a text")
        colon = after_space(text, end)
        if text[colon : colon + 1] != ":":
            raise ValueError("no colon behind a key")
        members[key], end = literal_at(text, after_space(text, colon + 1), deep)
        return end

    return members, _entries(text, at, "}", member)


def _entries(text: str, at: int, closer: str, entry: Callable[[int], int]) -> int:
    """Read entries with commas between them, and perhaps one behind the last. Return the place
    behind `closer`."""
    while True:
        at = after_space(text, at)
        if text[at : at + 1] == closer:
            return at + 1
        at = after_space(text, entry(at))
        if text[at : at + 1] == ",":
            at += 1
        elif text[at : at + 1] != closer:
            raise ValueError(f"no comma and no {closer}")


def _string(text: str, at: int) -> tuple[str, int]:
    quote, parts = text[at], list[str]()
    at += 1
    while True:
        ends = [end for mark in (quote, "\\") if (end := text.find(mark, at)) >= 0]
        if not ends:
            raise ValueError("a string without end")
        end = min(ends)
        parts.append(text[at:end])
        if text[end] == quote:
            return "".join(parts), end + 1
        part, at = _escaped(text, end + 1)
        parts.append(part)


def _escaped(text: str, at: int) -> tuple[str, int]:
    """Return the character behind a backslash. An unknown escape is both, as in Python."""
    letter = text[at : at + 1]
    digits = text[at + 1 : at + 1 + _CODES.get(letter, 0)]
    if digits and len(digits) == _CODES[letter] and re.fullmatch("[0-9a-fA-F]+", digits):
        end = at + 1 + len(digits)
        code = int(digits, 16)
        low = text[end + 2 : end + 6]
        pair = 0xD800 <= code < 0xDC00 and text.startswith("\\u", end)
        if pair and re.fullmatch("[dD][c-fC-F][0-9a-fA-F]{2}", low):
            return chr(0x10000 + (code - 0xD800) * 0x400 + int(low, 16) - 0xDC00), end + 6
        if code > 0x10FFFF:
            raise ValueError("no character has this number")
        return chr(code), end
    return _ESCAPES.get(letter, "\\" + letter), at + 1
