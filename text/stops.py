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


@dataclass(frozen=True)
class StopMatch:
    """The place of a stop string in the text, in characters from the text's start."""

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
    """A search for any of `stops` in the text of one answer.

    `include_stop` keeps the stop string in the text that is shown; then nothing is held back.
    """

    def __init__(self, stops: Sequence[str], include_stop: bool = False) -> None:
        if not all(stops):
            raise ValueError("an empty stop string matches everywhere; leave it out")
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
        if not self._root.children:
            self.shown += len(text)
            return text
        seen = self.shown + len(self._held)
        self._held += text
        if self.match is None:
            self._walk(text, seen, armed)
        if self.match is not None:
            return self._release(self.keep)
        held = 0 if self._include else self._node.undecided
        return self._release(self.shown + len(self._held) - held)

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

    def _walk(self, text: str, seen: int, armed: bool) -> None:
        node = self._node
        for i, char in enumerate(text, start=1):
            node = _step(node, char, self._root)
            if armed and node.stop is not None:
                end = seen + i
                self.match = StopMatch(node.stop, end - len(node.stop), end)
                break
        self._node = node

    def _release(self, keep: int) -> str:
        count = max(keep - self.shown, 0)
        out, self._held = self._held[:count], self._held[count:]
        self.shown += len(out)
        return out
