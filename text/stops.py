"""The search for stop strings in text that arrives in pieces.

The answer does not depend on where the pieces end: the match is the one that *completes* first,
and of those that complete together the longest. Text that may be the start of a stop string is
held back until that is decided.

Aho and Corasick, "Efficient string matching: an aid to bibliographic search" (1975): one walk over
the characters, however many strings; the walk's state is the longest suffix of the text that
begins a stop string, which is also what must be held back.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from baton.text.stop_regex import RegexWalk, compile_stops


@dataclass(frozen=True)
class StopMatch:
    """The place of a stop string in the text, in characters from the text's start. `stop` is the
    expression where one matched."""

    stop: str
    start: int
    end: int


@dataclass(eq=False, slots=True)
class _Node:
    children: "dict[str, _Node]" = field(default_factory=dict)
    fail: "_Node | None" = None  # the longest proper suffix that is a node; None for the root
    stop: str | None = None  # the longest stop string that ends here
    undecided: int = 0  # length of the longest suffix that a longer stop string begins with


# Clients choose the strings: the most that one may ask for takes a megabyte.
@lru_cache(maxsize=32)
def _automaton(stops: tuple[str, ...]) -> _Node:
    root = _Node()
    for stop in stops:
        node = root
        for char in stop:
            node = node.children.setdefault(char, _Node())
        node.stop = stop
    level = deque((root, char, child, 1) for char, child in root.children.items())
    while level:
        parent, char, node, depth = level.popleft()
        node.fail = root if parent is root else _step(parent.fail, char, root)
        node.stop = node.stop or node.fail.stop
        node.undecided = depth if node.children else node.fail.undecided
        level.extend((node, c, child, depth + 1) for c, child in node.children.items())
    return root


def _step(node: _Node | None, char: str, root: _Node) -> _Node:
    while node is not None and char not in node.children:
        node = node.fail
    return root if node is None else node.children[char]


class StopMatcher:
    """A search for any of `stops`, and of the expressions `regexes`, in the text of one answer.

    `include_stop` keeps the stop string in the text that is shown; then nothing is held back.
    """

    def __init__(
        self, stops: Sequence[str], include_stop: bool = False, regexes: Sequence[str] = ()
    ) -> None:
        """Raises StopRegexError for an expression that cannot be used."""
        if not all(stops):
            raise ValueError("an empty stop string matches everywhere; leave it out")
        self._regexes = RegexWalk(compile_stops(tuple(regexes))) if regexes else None
        self._root = _automaton(tuple(stops))
        self._node = self._root
        self._include = include_stop
        self._held = ""  # text after `shown`
        self.shown = 0
        """Characters returned so far."""
        self.match: StopMatch | None = None

    def push(self, text: str, armed: bool = True) -> str:
        """Take the next piece; return the text that is certain to be shown.

        A stop string counts only when it ends in an `armed` piece: an answer below its minimum
        length is not stopped, nor stopped later by what it said then. After a match nothing more
        comes; what was held is in `flush`.
        """
        if not self._root.children and self._regexes is None:
            self.shown += len(text)
            return text
        seen = self.shown + len(self._held)
        self._held += text
        if self.match is None:
            self._walk(text, seen, armed)
        if self.match is not None:
            return self._release(self.keep)
        return self._release(self.seen if self._include else self._decided)

    def hold(self, text: str) -> None:
        """Take the last piece, without a search. `flush` then says how much of it is shown."""
        self._held += text

    def flush(self, keep: int) -> str:
        """Return the held text up to character `keep`. Text that was shown stays shown."""
        return self._release(keep)

    @property
    def seen(self) -> int:
        """The number of characters pushed so far."""
        return self.shown + len(self._held)

    @property
    def keep(self) -> int:
        """The number of characters that belong to the answer, as far as this is known."""
        if self.match is None:
            return self.seen
        return self.match.end if self._include else self.match.start

    @property
    def _decided(self) -> int:
        """The number of characters that no match can begin in any more."""
        decided = self.seen - self._node.undecided
        return decided if self._regexes is None else min(decided, self._regexes.held_from(decided))

    def _walk(self, text: str, seen: int, armed: bool) -> None:
        node, regexes = self._node, self._regexes
        for end, char in enumerate(text, start=seen + 1):
            node = _step(node, char, self._root)
            by_regex = None if regexes is None else regexes.step(char, end - 1)
            if armed and node.stop is not None:
                self.match = StopMatch(node.stop, end - len(node.stop), end)
            if armed and by_regex is not None:
                stop, start = by_regex
                if self.match is None or start < self.match.start:
                    self.match = StopMatch(stop, start, end)
            if self.match is not None:
                break
        self._node = node

    def _release(self, keep: int) -> str:
        count = max(keep - self.shown, 0)
        out, self._held = self._held[:count], self._held[count:]
        self.shown += len(out)
        return out
