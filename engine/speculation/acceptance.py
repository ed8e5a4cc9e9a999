"""The part of one request's guesses that is right."""

from collections.abc import Sequence

import numpy as np

from baton.engine.speculation.ngram import LONGEST, SHORTEST

_MEMORY = 24.0  # guesses that count: older ones fade


class Acceptance:
    """The part of the latest guesses that were right."""

    def __init__(self) -> None:
        self._right = 0.0
        self._tried = 0.0

    def add(self, right: int, tried: int) -> None:
        """Note `tried` guesses, `right` of which were."""
        kept = max(0.0, 1.0 - tried / _MEMORY)
        self._right = self._right * kept + right
        self._tried = self._tried * kept + tried

    @property
    def rate(self) -> float:
        """Probability that a guess is right; 0 where none was tried."""
        return self._right / self._tried if self._tried else 0.0


def guessed_right(token_ids: Sequence[int], newest: int, searched: int) -> int:
    """Return how many of the `newest` last tokens n-grams would have guessed from those before.

    searched: tokens that are looked at, the last ones. It costs as much as newest * searched.
    """
    text = np.array(token_ids[-searched:], np.int64)
    first = max(SHORTEST, len(text) - newest)
    ends = np.arange(first, len(text))[:, None]  # of what is known when each token is guessed
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
    return int((found & (text[at] == text[ends[:, 0]])).sum())
