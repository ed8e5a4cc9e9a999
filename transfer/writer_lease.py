"""How long a writer may post, by its own clock."""

import time
from collections.abc import Callable

SHARE = 0.9
"""Of the lease: a writer stops before its peer gives it up."""


class WriterLease:
    """Renewed by every word of the peer; a lapse ends for good what was begun before it.

    A process that was stopped reads, when it goes on, what its peer had said before the lease was
    over: that renews the lease for hand-offs to come, and for none that the peer has given up.
    Set by one thread, read by any.
    """

    def __init__(self, lease_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._lease_s = lease_s * SHARE
        self._clock = clock
        self._held = (0, clock() + self._lease_s)  # (lapses so far, when it ends)

    def heard(self) -> None:
        """The peer has said something just now."""
        lapses, ends = self._held
        now = self._clock()
        self._held = (lapses + (now >= ends), now + self._lease_s)

    @property
    def lapses(self) -> int:
        """What a hand-off remembers of its beginning."""
        return self._held[0]

    def allows(self, lapses: int) -> bool:
        """Whether a hand-off that began after so many lapses may post now."""
        held, ends = self._held
        return held == lapses and self._clock() < ends
