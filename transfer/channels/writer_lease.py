"""The time for which a writer may post, by its own clock."""

import time
from collections.abc import Callable

SHARE = 0.9
"""The share of the lease after which a writer stops: before its peer gives it up."""


class WriterLease:
    """A lease that every message of the peer renews. A lapse ends all hand-offs begun before it.

    A process that was suspended reads, when it resumes, the messages that its peer sent before the
    lease ended. They renew the lease for later hand-offs, but not for those that the peer has given
    up. One thread sets it; any thread may read it.
    """

    def __init__(self, lease_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._lease_s = lease_s * SHARE
        self._clock = clock
        self._held = (0, clock() + self._lease_s)  # (lapses so far, when it ends)

    def heard(self) -> None:
        """Renew the lease: a message of the peer has just arrived."""
        lapses, ends = self._held
        now = self._clock()
        self._held = (lapses + (now >= ends), now + self._lease_s)

    @property
    def lapses(self) -> int:
        """Return how often the lease has lapsed. A hand-off keeps the number of its beginning."""
        return self._held[0]

    def allows(self, lapses: int) -> bool:
        """Return True when a hand-off that began after `lapses` lapses may post now."""
        held, ends = self._held
        return held == lapses and self._clock() < ends
