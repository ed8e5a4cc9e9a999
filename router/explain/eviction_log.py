"""The states that workers' prefix caches have lost, as far as the router heard of it."""

from array import array
from collections import deque
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import NamedTuple

from baton.text.prefix_digest import PromptPrefixes

MOST_LOST = 1 << 15
"""Prefixes that are remembered after their loss, in about 0.5 MB: the newest ones."""


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


class _Batch(NamedTuple):
    """The states that one worker lost at once. Arrays: most are never looked at."""

    lost_s: float
    worker: str
    how: Loss
    digests: "array[int]"
    depths: "array[int]"


class EvictionLog:
    """The newest losses of all workers. Adding one costs little; `find` reads all of them."""

    def __init__(self, clock: Callable[[], float], most: int = MOST_LOST) -> None:
        """clock: monotonic, in seconds. most: prefixes."""
        self._clock = clock
        self._most = most
        self._size = 0
        self._batches: deque[_Batch] = deque()

    def __len__(self) -> int:
        """Return the number of prefixes."""
        return self._size

    def add(self, worker: str, how: Loss, lost: Mapping[int, int]) -> None:
        """Record what a worker has lost: lengths of prefixes in tokens, by digest, newest last."""
        if not lost:
            return
        digests, depths = array("Q", lost), array("I", lost.values())
        kept = slice(-self._most, None)
        self._batches.append(_Batch(self._clock(), worker, how, digests[kept], depths[kept]))
        self._size += len(self._batches[-1].digests)
        while self._size > self._most:
            self._size -= len(self._batches.popleft().digests)

    def find(self, prompt: PromptPrefixes) -> list[LostState]:
        """Return the lost states of the prompt's prefixes, oldest first."""
        lengths = sorted({n for batch in self._batches for n in batch.depths if n <= len(prompt)})
        wanted = dict(zip(prompt.digests(lengths), lengths, strict=True))
        names = frozenset(wanted)
        return [
            LostState(batch.lost_s, batch.worker, wanted[digest], batch.how)
            for batch in self._batches
            for digest in names.intersection(batch.digests)
        ]
