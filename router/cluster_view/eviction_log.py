"""The states that workers' prefix caches have lost, as far as the router heard of it."""

from array import array
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import NamedTuple

from baton.text.prefix_digest import PromptPrefixes

MOST_LOST = 1 << 15
"""Prefixes that are remembered after their loss, in about 1.2 MB: the newest ones."""


class Loss(StrEnum):
    """The way in which a state was lost."""

    EVICTED = "evicted"  # the cache needed its memory
    FLUSHED = "flushed"
    WORKER_GONE = "worker gone"  # it was lost or has left


class LostState(NamedTuple):
    """One state that a worker had."""

    lost_s: float  # on the router's clock
    worker: str
    tokens: int  # of the prefix
    how: Loss


class EvictionLog:
    """The newest losses of all workers. Adding one costs little; `find` reads all of them."""

    def __init__(self, clock: Callable[[], float], most: int = MOST_LOST) -> None:
        """clock: monotonic, in seconds. most: prefixes."""
        self._clock = clock
        self._most = most
        self._added = 0  # so far; the next one is at `_added % most`
        # Columns whose rows are written again and again: `add` allocates and frees nothing then.
        self._digests, self._depths, self._lost_s = array("Q"), array("I"), array("d")
        self._workers: list[str] = []
        self._how: list[Loss] = []

    def __len__(self) -> int:
        """Return the number of prefixes."""
        return len(self._digests)

    def add(self, worker: str, how: Loss, lost: Mapping[int, int]) -> None:
        """Record what a worker has lost: lengths of prefixes in tokens, by digest, newest last."""
        if not lost:
            return
        now, most, added = self._clock(), self._most, self._added
        for digest in lost:
            row = added % most
            if row == len(self._digests):
                self._grow()
            self._digests[row] = digest
            self._depths[row] = lost[digest]
            self._lost_s[row] = now
            self._workers[row] = worker
            self._how[row] = how
            added += 1
        self._added = added

    def _grow(self) -> None:
        """Add a row."""
        for column in (self._digests, self._depths, self._lost_s):
            column.append(0)
        self._workers.append("")
        self._how.append(Loss.EVICTED)

    def find(self, prompt: PromptPrefixes) -> list[LostState]:
        """Return the lost states of the prompt's prefixes, oldest first."""
        size = len(prompt)
        rows = [added % self._most for added in range(self._added - len(self), self._added)]
        lengths = sorted({depth for row in rows if (depth := self._depths[row]) <= size})
        wanted = dict(zip(prompt.digests(lengths), lengths, strict=True))
        return [
            LostState(self._lost_s[row], self._workers[row], wanted[digest], self._how[row])
            for row in rows
            if (digest := self._digests[row]) in wanted
        ]
