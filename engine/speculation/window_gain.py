"""The gain of windows: tokens a second with drafts, as a multiple of plain decoding's."""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple, Protocol

PLAIN = 1
"""The window of a step without drafts."""
CUT = 0
"""Stands for the window of a step whose rows were to have drafts, where nothing was guessed: it was
computed as a plain one."""

Cost = Callable[[int], float]
"""Returns what a step of a window costs, as a multiple of a plain one of as many rows."""


class DraftGain(Protocol):
    """The tokens that a row's drafts are expected to give."""

    @property
    def found(self) -> float:
        """The probability that there are any."""
        ...

    def tokens(self, window: int) -> float:
        """Return the tokens that a step gives beside the newest one, on average."""
        ...


class Guessed(NamedTuple):
    """The guesses for one row: the probability that there are any, and that each is right if those
    before it are."""

    right: float
    found: float

    def tokens(self, window: int) -> float:
        """See `DraftGain`."""
        right = self.right
        if right >= 1.0:
            return self.found * (window - 1)
        return self.found * (right - right**window) / (1.0 - right)


class Drafted(NamedTuple):
    """The drafts of a layer of multi-token prediction, of which there are always some: the tokens
    that they give where a window has room for 0, 1, 2 … of them."""

    gains: tuple[float, ...]
    found: float = 1.0

    @classmethod
    def of(cls, rates: Iterable[float]) -> "Drafted":
        """rates: the probability at each depth that the draft is right behind right ones."""
        return cls(tuple(accumulate(accumulate(rates, mul), initial=0.0)))

    def tokens(self, window: int) -> float:
        """See `DraftGain`."""
        return self.gains[min(window, len(self.gains)) - 1]


class Choice(NamedTuple):
    """The window of the next steps, and how many rows have drafts: those whose guesses are most
    often right."""

    window: int
    rows: int
    gain: float


def choose(
    guesses: Sequence[DraftGain], rows: int, windows: Sequence[int], cost: Cost, cuts: bool
) -> Choice:
    """Return the choice that gives the most tokens a second.

    All rows of a step have the same window, so each row pays for the drafts of the others. A row
    with few guesses must therefore raise the tokens by more than it raises the steps of the whole
    window.

    guesses: of the rows that may have drafts, those that are most often right first. rows: of a
    step, those without guesses too. cuts: a step where nothing is guessed is computed as a plain
    one.
    """
    best = Choice(PLAIN, 0, 1.0)
    if not guesses:
        return best
    rows = max(rows, len(guesses))
    for window in windows:
        whole, short = cost(window), cost(CUT) if cuts else cost(window)
        tokens, none = float(rows), 1.0
        for count, guessed in enumerate(guesses, 1):
            tokens += guessed.tokens(window)
            none *= 1.0 - guessed.found
            gain = tokens / rows / (none * short + (1.0 - none) * whole)
            if gain > best.gain:
                best = Choice(window, count, gain)
    return best
