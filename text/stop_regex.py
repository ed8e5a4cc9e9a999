"""Regular expressions that end an answer, searched in text that arrives in pieces.

A client writes them and the engine's thread runs them, so the search never goes back: all ways to
match are followed at once, and the cost of a character is bounded by `MAX_LINKS`. The automaton is
that of positions (Glushkov, "The abstract theory of automata", 1961): one for each character that
the expression spells, with links to those that may come next.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from baton.text.errors import StopRegexError
from baton.text.regex_syntax import AnyOf, CharTest, InOrder, Node, OneChar, Repeat, parse_regex

MAX_POSITIONS = 256
MAX_LINKS = 1024
_MAX_STEPS = 10_000  # of compiling one: repeats of nothing make no position


@dataclass(frozen=True)
class StopAutomaton:
    """The positions of several expressions; see the module."""

    tests: tuple[CharTest, ...]  # of each position: whether it takes a character
    follow: tuple[tuple[int, ...], ...]  # positions that may come after each
    first: tuple[int, ...]  # positions at which a match may begin
    pattern_at: dict[int, str]  # position -> the expression whose match may end there


@lru_cache(maxsize=64)
def compile_stops(patterns: tuple[str, ...]) -> StopAutomaton:
    """Compile expressions. Raises StopRegexError that says what is wrong with which."""
    tests: list[CharTest] = []
    follow: list[tuple[int, ...]] = []
    first: list[int] = []
    ends: dict[int, str] = {}
    for pattern in patterns:
        made, whole = _compile_one(pattern)
        shift = len(tests)
        tests += made.tests
        follow += [tuple(shift + i for i in sorted(links)) for links in made.follow]
        first += [shift + i for i in whole.first]
        ends |= {shift + i: pattern for i in whole.last}
    return StopAutomaton(tuple(tests), tuple(follow), tuple(first), ends)


class RegexWalk:
    """The search for the expressions of one answer. Each way to match keeps where it began."""

    def __init__(self, automaton: StopAutomaton) -> None:
        self._automaton = automaton
        self._live: dict[int, int] = {}  # position -> the earliest start of a match that is there

    def step(self, char: str, index: int) -> tuple[str, int] | None:
        """Take the character at `index`. Return (expression, start) of the longest match that ends
        with it, or None.
        """
        machine, tests = self._automaton, self._automaton.tests
        reached: dict[int, int] = {}
        for position, start in self._live.items():
            for following in machine.follow[position]:
                if reached.get(following, index) >= start and tests[following](char):
                    reached[following] = start
        for position in machine.first:
            if position not in reached and tests[position](char):
                reached[position] = index
        self._live = reached
        ended = [(start, at) for at, start in reached.items() if at in machine.pattern_at]
        if not ended:
            return None
        start, at = min(ended)
        return machine.pattern_at[at], start

    def held_from(self, seen: int) -> int:
        """Return where text begins that may still become a match, at most `seen`."""
        return min(self._live.values(), default=seen)


@dataclass
class _Positions:
    """The positions of one expression, while it is compiled."""

    tests: list[CharTest] = field(default_factory=list)
    follow: list[set[int]] = field(default_factory=list)
    links: int = 0
    steps: int = 0


@dataclass(frozen=True)
class _Part:
    """A part of an expression: where its matches begin and end, and whether nothing is one."""

    nullable: bool
    first: tuple[int, ...] = ()
    last: tuple[int, ...] = ()


_NOTHING = _Part(True)


def _compile_one(pattern: str) -> tuple[_Positions, _Part]:
    made = _Positions()
    try:
        whole = _build(parse_regex(pattern), made)
        if whole.nullable:
            raise StopRegexError("it matches the empty text, so that every answer would be empty")
    except StopRegexError as error:
        raise StopRegexError(f"stop_regex {pattern[:80]!r}: {error}") from error
    return made, whole


def _build(node: Node, made: _Positions) -> _Part:
    """Add the positions of `node`. Raises StopRegexError past the limits."""
    made.steps += 1
    if made.steps > _MAX_STEPS or len(made.tests) > MAX_POSITIONS or made.links > MAX_LINKS:
        raise StopRegexError("it is too large; use smaller repeats and fewer alternatives")
    match node:
        case OneChar(test):
            made.tests.append(test)
            made.follow.append(set())
            at = (len(made.tests) - 1,)
            return _Part(False, at, at)
        case AnyOf(options):
            parts = [_build(option, made) for option in options]
            return _Part(
                any(part.nullable for part in parts),
                tuple(i for part in parts for i in part.first),
                tuple(i for part in parts for i in part.last),
            )
        case InOrder(items):
            whole = _NOTHING
            for item in items:
                whole = _joined(whole, _build(item, made), made)
            return whole
        case Repeat():
            return _repeated(node, made)


def _repeated(node: Repeat, made: _Positions) -> _Part:
    least, most = node.least, node.most
    whole = _NOTHING
    for _ in range(least if most is not None else max(least - 1, 0)):
        whole = _joined(whole, _build(node.item, made), made)
    if most is None:
        loop = _build(node.item, made)
        _link(loop.last, loop.first, made)
        return _joined(whole, _Part(loop.nullable or not least, loop.first, loop.last), made)
    # a{0,3} as (a(a(a)?)?)?: each position has one link to the next, not one to all that follow.
    optional = _NOTHING
    for _ in range(most - least):
        inner = _joined(_build(node.item, made), optional, made)
        optional = _Part(True, inner.first, inner.last)
    return _joined(whole, optional, made)


def _joined(left: _Part, right: _Part, made: _Positions) -> _Part:
    """Return the part that is `left` and then `right`."""
    _link(left.last, right.first, made)
    return _Part(
        left.nullable and right.nullable,
        left.first + (right.first if left.nullable else ()),
        right.last + (left.last if right.nullable else ()),
    )


def _link(ends: Sequence[int], starts: Sequence[int], made: _Positions) -> None:
    if made.links + len(ends) * len(starts) > 2 * MAX_LINKS:
        raise StopRegexError("it is too large; use smaller repeats and fewer alternatives")
    for end in ends:
        before = len(made.follow[end])
        made.follow[end].update(starts)
        made.links += len(made.follow[end]) - before
