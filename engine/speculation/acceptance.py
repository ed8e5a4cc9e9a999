"""Probabilities that are estimated from what happened lately."""

from collections.abc import Sequence

import numpy as np

from baton.engine.speculation.ngram import LONGEST, SHORTEST

_MEMORY = 24.0  # trials that count: older ones fade


class Chance:
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
    text = np.array(token_ids[-searched:], np.int64)
    first = max(SHORTEST, len(text) - newest)
    ends = np.arange(first, len(text))[:, None]  # of what is known when each token is guessed
    if not len(ends):
        return 0, 0
    places = np.arange(len(text))
    same = np.zeros((len(ends), len(text)), np.int64)
    alike = np.ones(same.shape, np.bool_)
    for back in range(1, LONGEST + 1):
        before = np.empty(len(text), np.int64)
        before[:back], before[back:] = -1, text[:-back]
        last = np.where(ends >= back, text[np.maximum(ends - back, 0)], -2)
        alike &= before == last
        same += alike
    rank = np.where((places < ends) & (same >= SHORTEST), same * len(text) + places, -1)
    at = rank.argmax(axis=1)
    found = rank[np.arange(len(ends)), at] >= 0
    return int((found & (text[at] == text[ends[:, 0]])).sum()), int(found.sum())
