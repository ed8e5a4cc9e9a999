"""The syntax of regular expressions that end answers: Python's, without what looks around.

Lazy and greedy repeats are the same here, because the match that ends first counts. Anchors, `\\b`,
back references and looking ahead or back are refused.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from baton.text.errors import StopRegexError

CharTest = Callable[[str], bool]
"""A test of one character."""

MAX_DEPTH = 32
MAX_REPEATS = 256
_COUNTS = re.compile(r"\{(\d{0,9})(,?)(\d{0,9})\}")
_SPACES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}
_SIMPLE_REPEATS = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_SETS: dict[str, CharTest] = {
    "d": str.isdecimal,
    "w": lambda char: char.isalnum() or char == "_",
    "s": str.isspace,
}


@dataclass(frozen=True)
class OneChar:
    test: CharTest


@dataclass(frozen=True)
class InOrder:
    """One after the other."""

    items: "tuple[Node, ...]"


@dataclass(frozen=True)
class AnyOf:
    options: "tuple[Node, ...]"


@dataclass(frozen=True)
class Repeat:
    item: "Node"
    least: int
    most: int | None  # None: without end


Node = OneChar | InOrder | AnyOf | Repeat


def parse_regex(pattern: str) -> Node:
    """Return the tree of an expression. Raises StopRegexError."""
    reader = _Reader(pattern)
    tree = reader.alternatives(0)
    if reader.rest:
        raise StopRegexError("a ) without its (")
    return tree


class _Reader:
    """A reader of one expression, from left to right."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    @property
    def rest(self) -> str:
        return self._pattern[self._at :]

    def alternatives(self, depth: int) -> Node:
        """Read up to a closing bracket or the end."""
        if depth > MAX_DEPTH:
            raise StopRegexError(f"its groups lie more than {MAX_DEPTH} deep")
        options = [self._row(depth)]
        while self._take("|"):
            options.append(self._row(depth))
        return options[0] if len(options) == 1 else AnyOf(tuple(options))

    def _row(self, depth: int) -> Node:
        items: list[Node] = []
        while self.rest and self.rest[0] not in "|)":
            items.append(self._repeated(self._item(depth)))
        return items[0] if len(items) == 1 else InOrder(tuple(items))

    def _item(self, depth: int) -> Node:
        char = self._next()
        if char == "(":
            self._group_kind()
            inner = self.alternatives(depth + 1)
            if not self._take(")"):
                raise StopRegexError("a ( without its )")
            return inner
        if char == "[":
            return OneChar(self._set())
        if char == "\\":
            return OneChar(self._escape())
        if char == ".":
            return OneChar(lambda each: each != "\n")
        if char in "^$":
            raise StopRegexError(f"{char} is not supported: an answer's text has no last line yet")
        if char in "*+?":
            raise StopRegexError(f"nothing to repeat before {char}")
        return OneChar(char.__eq__)

    def _group_kind(self) -> None:
        """Read what may follow an opening bracket. All groups are the same here."""
        if not self._take("?") or self._take(":"):
            return
        named = re.match(r"P<\w+>", self.rest)
        if named is None:
            raise StopRegexError(f"(?{self.rest[:1]} is not supported; expected (?: or (")
        self._at += named.end()

    def _repeated(self, item: Node) -> Node:
        counts = self._counts()
        if counts is None:
            return item
        self._take("?")  # lazy: the same
        if self._counts() is not None:
            raise StopRegexError("a repeat of a repeat; put the first one in brackets")
        least, most = counts
        if (most is not None and most < least) or max(least, most or 0) > MAX_REPEATS:
            raise StopRegexError(f"a repeat of {least} to {most}; at most {MAX_REPEATS}")
        return Repeat(item, least, most)

    def _counts(self) -> tuple[int, int | None] | None:
        simple = _SIMPLE_REPEATS.get(self.rest[:1])
        if simple is not None:
            self._at += 1
            return simple
        found = _COUNTS.match(self._pattern, self._at)
        if found is None or not (found[1] or found[3]):
            return None
        self._at = found.end()
        least = int(found[1] or 0)
        if not found[2]:
            return least, least
        return least, int(found[3]) if found[3] else None

    def _escape(self) -> CharTest:
        char = self._next()
        if char.lower() in _SETS:
            test = _SETS[char.lower()]
            return test if char.islower() else lambda each: not test(each)
        return self._escaped(char).__eq__

    def _escaped(self, char: str) -> str:
        """Return the character that an escape stands for."""
        if char in _SPACES:
            return _SPACES[char]
        if char in "xu":
            digits = re.match(r"[0-9a-fA-F]{2}" if char == "x" else r"[0-9a-fA-F]{4}", self.rest)
            if digits is None:
                raise StopRegexError(f"\\{char} needs hexadecimal digits after it")
            self._at += digits.end()
            return chr(int(digits[0], 16))
        if char.isalnum():
            raise StopRegexError(f"\\{char} is not supported")
        return char

    def _set(self) -> CharTest:
        """Read a set after its opening bracket."""
        negated = self._take("^")
        tests: list[CharTest] = []
        singles: set[str] = set()
        ranges: list[tuple[str, str]] = []
        empty = True  # a ] at the beginning is a member
        while empty or not self._take("]"):
            empty = False
            low = self._member()
            if self.rest[:1] == "-" and self.rest[1:2] not in ("", "]"):
                self._at += 1
                high = self._member()
                if not isinstance(low, str) or not isinstance(high, str) or high < low:
                    raise StopRegexError("a range in [] that has no order")
                ranges.append((low, high))
            elif isinstance(low, str):
                singles.add(low)
            else:
                tests.append(low)
        return _set_test(tests, frozenset(singles), ranges, negated)

    def _member(self) -> str | CharTest:
        char = self._next()
        if char != "\\":
            return char
        if self.rest[:1].lower() in _SETS:
            return self._escape()
        return self._escaped(self._next())

    def _take(self, char: str) -> bool:
        found = self.rest[:1] == char
        self._at += found
        return found

    def _next(self) -> str:
        if not self.rest:
            raise StopRegexError("it ends in the middle of a group, a set or an escape")
        self._at += 1
        return self._pattern[self._at - 1]


def _set_test(
    tests: list[CharTest], singles: frozenset[str], ranges: list[tuple[str, str]], negated: bool
) -> CharTest:
    def test(char: str) -> bool:
        within = char in singles or any(low <= char <= high for low, high in ranges)
        return (within or any(each(char) for each in tests)) != negated

    return test
