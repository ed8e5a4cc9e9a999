"""Probabilities that are estimated from what happened lately."""

from collections.abc import Iterable, Sequence
from itertools import repeat

import numpy as np

from baton.core.fading_mean import FadingMean
from baton.engine.speculation.ngram import LONGEST, SHORTEST

_MEMORY = 24.0  # trials that count: older ones fade


class FadingShare:
    """The part of the latest trials that succeeded."""

    def __init__(self, first: float, weight: float, memory: float = _MEMORY) -> None:
        """first: the estimate without a trial, which counts as much as `weight` trials. memory:
        trials that count."""
        self._first = first
        self._weight = weight
        self._memory = memory
        self._seen = FadingMean()  # successes a trial

    def add(self, succeeded: int, tried: int) -> None:
        """Note `tried` trials, `succeeded` of which did."""
        self._seen.add(succeeded, tried, max(0.0, 1.0 - tried / self._memory))

    @property
    def rate(self) -> float:
        """Probability that a trial succeeds."""
        return self.given(self._first)

    @property
    def trust(self) -> float:
        """The weight of trials in the estimate, 0 to 1."""
        return self._seen.units / (self._seen.units + self._weight)

    def given(self, first: float) -> float:
        """Return the probability that a trial succeeds, with another estimate without a trial."""
        return (self._seen.amount + first * self._weight) / (self._seen.units + self._weight)


class DepthShares:
    """The part of the latest drafts of each depth that were right behind right ones: a layer of
    multi-token prediction guesses less well the deeper it gets.
    """

    def __init__(self, depths: int, weight: float, memory: float = _MEMORY) -> None:
        """depths: drafts of a row, at most. weight, memory: see `FadingShare`."""
        self._shares = [FadingShare(0.0, weight, memory) for _ in range(depths)]

    def add(self, drafts: int, accepted: int) -> None:
        """Note a row's drafts, of which the first `accepted` were right. Those behind a wrong one
        were not tried.
        """
        for depth, share in enumerate(self._shares[: min(drafts, accepted + 1)]):
            share.add(depth < accepted, 1)

    def given(self, first: Iterable[float]) -> list[float]:
        """Return the probability at each depth. first: those without a trial."""
        return [share.given(known) for share, known in zip(self._shares, first, strict=True)]

    def smoothed(self, first: float) -> list[float]:
        """Return the probability at each depth. first: at the first without a trial. A deeper one
        is taken to be as right as the one before, as far as there were trials of any before it: so
        windows are short at first.
        """
        found, untried = [], 1.0
        for share in self._shares:
            found.append(share.given(first))
            untried *= 1.0 - share.trust
            first = found[-1] * (1.0 - untried)
        return found


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
