"""The pool whose shortage makes the prefix cache evict."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shortages:
    """The bytes that the prefix cache evicted lately, by the pool that ran short."""

    slots: float = 0.0
    pages: float = 0.0


class EvictionCauses:
    """A sum of evicted bytes by cause, in which old evictions fade.

    An eviction for one pool also frees what it holds of the other, so whichever pool is too small
    for the traffic causes nearly all evictions.
    """

    def __init__(self, window_bytes: int) -> None:
        """window_bytes: both sums are halved whenever together they reach this many bytes."""
        self._window_bytes = max(1, window_bytes)
        self.lately = Shortages()

    def add(self, *, slots: int = 0, pages: int = 0) -> None:
        """Count bytes that were evicted because slots, or pages, ran short."""
        before = self.lately
        now = Shortages(before.slots + slots, before.pages + pages)
        if now.slots + now.pages >= self._window_bytes:
            now = Shortages(now.slots / 2, now.pages / 2)
        self.lately = now
