"""The bandwidth of the way to one peer, as the writing side measures it."""

import time
from collections.abc import Callable

from baton.core.recent_rate import RecentRate

_KEPT = 0.9
"""The part of what was measured that counts on after the next stretch of writes."""
FORGOTTEN_S = 60.0
"""The age at which a measurement is forgotten: a link that is avoided is tried again then."""
_FIRST = 1
"""Stretches that are not measured: the first one connects."""


class LinkRate:
    """A measurement of the bytes that arrive while at least one write is under way.

    Writes of several hand-offs overlap: they share the link, so the time in which any of them is
    under way counts once. One thread calls `begin` and `end`; any may read the rate.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """clock: in seconds."""
        self._clock = clock
        self._rate = RecentRate(_KEPT)
        self._writes = 0
        self._moved = 0
        self._since_s = 0.0
        self._measured_s = 0.0
        self._stretches = 0

    @property
    def bytes_per_s(self) -> float:
        """Return the rate of the last minute; 0: not known."""
        if self._clock() - self._measured_s > FORGOTTEN_S:
            return 0.0
        return self._rate.bytes_per_s

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
            self._measured_s = self._clock()
            self._rate.took(self._moved, self._measured_s - self._since_s)
