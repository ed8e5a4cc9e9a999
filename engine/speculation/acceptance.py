"""Probabilities that are estimated from what happened lately."""

from collections.abc import Sequence
from itertools import repeat

import numpy as np

from baton.engine.speculation.ngram import LONGEST, SHORTEST

_MEMORY = 24.0  # trials that count: older ones fade


class FadingShare:
    """The part of the latest trials that succeeded."""

    def __init__(self, first: float, weight: float) -> None:
        """first: the estimate without a trial, which counts as much as `weight` trials."""
        self._first = first * weight
        self._weight = weight
        self._succeeded = 0.0
        self._tried = 0.0

    def add(self, succeeded: int, tried: int) -> None:
        """Note `tried` trials, `succeeded` of which did."""
        kept = max(0.0, 1.0 - tried / _MEMORY)
        self._succeeded = self._succeeded * kept + succeeded
        self._tried = self._tried * kept + tried

    @property
    def rate(self) -> float:
        """Probability that a trial succeeds."""
        return (self._succeeded + self._first) / (self._tried + self._weight)


def guessed_right(token_ids: Sequence[int], newest: int, searched: int) -> tuple[int, int]:
    """Return how many of the `newest` last tokens n-grams would have guessed from those before:
    rightly, and at all.

    searched: tokens that are looked at, the last ones. It costs as much as newest * searched.
    """
    known = token_ids[-searched:]
    first, count = max(SHORTEST, len(known) - newest), len(known)
    text = np.array((*repeat(-1, LONGEST), *known), np.int64)
    # Of what is known when each token is guessed, and of what may have been the same before.
    ends, places = np.arange(first, count)[:, None], np.arange(count)
    same = np.zeros((len(ends), count), np.int64)
    alike = places < ends
    for back in range(1, LONGEST + 1):
        before = text[LONGEST - back :][:count]
        alike &= before == before[first:, None]
        if back <= SHORTEST and not alike.any():
            return 0, 0
        same += alike
    rank = np.where(same >= SHORTEST, same * count + places, -1)
    at = rank.argmax(axis=1)
    found = rank[np.arange(len(ends)), at] >= 0
    return int((found & (text[LONGEST:][at] == text[LONGEST + ends[:, 0]])).sum()), int(found.sum())
