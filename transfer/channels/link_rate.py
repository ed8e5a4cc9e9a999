"""The bandwidth of the way to one peer, as the writing side measures it."""

import time
from collections.abc import Callable
from typing import NamedTuple

FORGOTTEN_S = 60.0
"""The time after which a link that nobody uses is not known: one that is avoided is tried again."""
_FIRST = 1
"""Stretches that are not measured: the first one connects."""
_KEPT, _LEAST = 8, 3
"""The newest stretches that count, and those that are needed. The fastest of them tells the
bandwidth: any other may have waited for a core, or was too small."""


class _Stretch(NamedTuple):
    """A time in which at least one write was under way."""

    ended_s: float
    bytes_per_s: float


class LinkRate:
    """A measurement of the bytes that arrive while at least one write is under way.

    Writes of several hand-offs overlap: they share the link, so the time in which any of them is
    under way counts once. One thread calls `begin` and `end`; any may read the rate.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """clock: in seconds."""
        self._clock = clock
        self._newest: tuple[_Stretch, ...] = ()  # replaced, because others read it meanwhile
        self._writes = 0
        self._moved = 0
        self._since_s = 0.0
        self._stretches = 0

    @property
    def bytes_per_s(self) -> float:
        """Return the bandwidth; 0: not known, or not measured in the last minute."""
        newest, now_s = self._newest, self._clock()
        if len(newest) < _LEAST or now_s - newest[-1].ended_s > FORGOTTEN_S:
            return 0.0
        # Older ones count only while too few are recent.
        recent = [each for each in newest if now_s - each.ended_s <= FORGOTTEN_S]
        counted = max(recent, newest[-_LEAST:], key=len)
        return max(each.bytes_per_s for each in counted)

    def begin(self) -> None:
        """Note that a write begins."""
        if not self._writes:
            self._since_s, self._moved = self._clock(), 0
        self._writes += 1

    def end(self, size: int) -> None:
        """Note that a write has ended, and the bytes of it that have arrived."""
        self._writes -= 1
        self._moved += size
        if self._writes:
            return
        self._stretches += 1
        if self._moved and self._stretches > _FIRST:
            now_s = self._clock()
            took_s = max(now_s - self._since_s, 1e-9)
            self._newest = (*self._newest[1 - _KEPT :], _Stretch(now_s, self._moved / took_s))
