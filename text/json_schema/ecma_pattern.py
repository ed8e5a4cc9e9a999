"""Regular expressions of JSON Schema, which are ECMAScript's, in the dialect of llguidance.

That dialect is Rust's: no looking around, no back references, and other escapes and sets.
"""

import re

from baton.text.errors import PatternError

_COUNT = re.compile(r"\{\d+(?:,\d*)?\}")
_NAME = re.compile(r"[\w$]+", re.ASCII)
_SAME_ESCAPES = frozenset("dDwWsSnrtfv")
_PROPERTY = re.compile(r"\\[pP](?:\{[\w=]{1,64}\}|[A-Z])", re.ASCII)
_CODES = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\})")
_CLASSES = frozenset("dDwWsSpP")
_MARKS = frozenset(r"""\.+*?()|[]{}^$#&-~/""")
_FLAGS = re.compile(r"\(\?[ims]{1,3}([:)])")
_PART = re.compile(r"\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})", re.I)
_LACKS = "the dialect of grammars lacks a part of the pattern"
KNOWN = {
    r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$": r"^[+-]?(?:\d+\.?\d*|\.\d+)$",  # pydantic's Decimal
}
"""Patterns that look ahead, of widespread generators, and equal ones that do not."""


def translated(pattern: str) -> str | None:
    """Return a pattern that matches the same texts; None if there is none in that dialect."""
    known = KNOWN.get(pattern)
    if known is not None:
        return known
    try:
        return _Translation(_PART.sub(_paired, pattern)).whole()
    except PatternError:
        return None


def _paired(found: re.Match[str]) -> str:
    high, low = int(found[1], 16) - 0xD800, int(found[2], 16) - 0xDC00
    return f"\\u{{{0x10000 + (high << 10) + low:x}}}"


class _Translation:
    """The translation of one pattern."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._leading = True  # nothing before this place takes a character
        self._ended = False  # the end of the text was asked for
        self._groups: list[tuple[bool, bool]] = []  # each open group's beginning
        self._out: list[str] = []

    def whole(self) -> str:
        while self._at < len(self._pattern):
            self._next()
        return "".join(self._out)

    def _next(self) -> None:
        char = self._pattern[self._at]
        if char == "(":
            self._open()
        elif char == ")":
            self._leading, ended = self._groups.pop() if self._groups else (False, False)
            self._ended = self._ended or ended
            self._take(1, ")", leading=False)
        elif char == "|":
            began, _ = self._groups[-1] if self._groups else (True, False)
            if self._groups and self._ended:
                self._groups[-1] = (began, True)
            self._take(1, "|", leading=began)
            self._ended = False
        elif char == "^":
            if not self._leading:
                raise PatternError(_LACKS)
            self._take(1, "^", leading=True)
        elif char == "$":
            self._take(1, "$", leading=False)
            self._ended = True
        elif char in "*+?" or _COUNT.match(self._pattern, self._at):
            count = _COUNT.match(self._pattern, self._at)
            text = char if count is None else count[0]
            self._take(len(text), text, leading=False)
        elif self._ended:
            raise PatternError(_LACKS)  # something after the end
        elif char == "[":
            self._set()
        elif char == "\\":
            self._escape()
        else:
            self._take(1, "\\" + char if char in "{}]" else char, leading=False)

    def _take(self, count: int, text: str, *, leading: bool) -> None:
        self._at += count
        self._out.append(text)
        self._leading = leading

    def _open(self) -> None:
        if self._ended:
            raise PatternError(_LACKS)
        self._groups.append((self._leading, False))
        rest = self._pattern[self._at + 1 : self._at + 4]
        if not rest.startswith("?"):
            return self._take(1, "(", leading=self._leading)
        if rest[1:2] == ":":
            return self._take(3, "(?:", leading=self._leading)
        named = 3 if rest[1:2] == "<" else 4  # (?<name>, or Python's (?P<name>
        if (rest[1:2] == "<" and rest[2:3] not in ("=", "!")) or rest[1:3] == "P<":
            name = _NAME.match(self._pattern, self._at + named)
            if name is not None and self._pattern[name.end() : name.end() + 1] == ">":
                return self._take(name.end() + 1 - self._at, "(", leading=self._leading)
        flags = _FLAGS.match(self._pattern, self._at)
        if flags is not None:
            if flags[1] == ")":
                self._groups.pop()  # flags alone open no group
            return self._take(len(flags[0]), flags[0], leading=self._leading)
        raise PatternError(_LACKS)

    def _escape(self) -> None:
        rest = self._pattern[self._at : self._at + 2]
        if rest == "\\A":
            if not self._leading:
                raise PatternError(_LACKS)
            return self._take(2, "^", leading=True)
        if rest in ("\\Z", "\\z"):
            self._ended = True
            return self._take(2, "$", leading=False)
        if rest[1:] in ("b", "B", "k") or (rest[1:].isdigit() and rest[1:] != "0"):
            raise PatternError(_LACKS)
        self._take(0, self._character(), leading=False)

    def _character(self) -> str:
        """Take an escape, and return the one of the other dialect."""
        property_ = _PROPERTY.match(self._pattern, self._at)
        if property_ is not None:
            self._at = property_.end()
            return property_[0]
        code = _CODES.match(self._pattern, self._at)
        if code is not None:
            self._at = code.end()
            return literal(int(code[1] or code[2] or code[3], 16))
        rest = self._pattern[self._at + 1 : self._at + 3]
        if not rest:
            raise PatternError(_LACKS)
        if rest[0] == "c" and rest[1:].isascii() and rest[1:].isalpha():
            self._at += 3
            return literal(ord(rest[1]) % 32)
        self._at += 2
        if rest[0] == "0":
            return literal(0)
        if rest[0] in _SAME_ESCAPES:
            return "\\" + rest[0]
        return literal(ord(rest[0]))

    def _set(self) -> None:
        """Take a set in brackets. Rust reads more signs in it: `[`, `&&`, `--`, `~~`."""
        self._at += 1
        negated = self._pattern.startswith("^", self._at)
        self._at += negated
        items: list[str] = []
        while not self._pattern.startswith("]", self._at):
            item = self._item()
            if self._is_range() and not _is_class(item):
                at = self._at
                self._at += 1
                last = self._item()
                if _is_class(last):
                    self._at = at  # a hyphen before a class is a hyphen
                else:
                    item += "-" + last
            items.append(item)
        self._at += 1
        if items:
            text = f"[{'^' * negated}{''.join(items)}]"
        elif negated:
            text = "[\\s\\S]"
        else:
            raise PatternError(_LACKS)  # no character is in it
        self._take(0, text, leading=False)

    def _is_range(self) -> bool:
        rest = self._pattern[self._at : self._at + 2]
        return rest[:1] == "-" and rest[1:] not in ("", "]")

    def _item(self) -> str:
        char = self._pattern[self._at : self._at + 1]
        if not char:
            raise PatternError(_LACKS)  # the set has no end
        if char == "\\":
            if self._pattern.startswith("\\b", self._at):
                self._at += 2
                return literal(8)
            return self._character()
        self._at += 1
        return literal(ord(char))


def literal(code: int) -> str:
    """Return a character as itself, or escaped where it would be a sign."""
    if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
        raise PatternError(_LACKS)
    char = chr(code)
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    return "\\" + char if char in _MARKS else char


def _is_class(item: str) -> bool:
    return item[:1] == "\\" and item[1:2] in _CLASSES
