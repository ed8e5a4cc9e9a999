"""The lease of a peer, for workers and routers alike."""

import asyncio
from collections.abc import Awaitable, Callable

from baton.core.errors import PeerSilentError

DEFAULT_LEASE_MS = 3000
MIN_LEASE_MS = 100
"""Heartbeats of a shorter lease would come too often: every 20 ms here."""
TICKS_PER_LEASE = 5
"""Ticks of the listener in one lease: heartbeats are sent, and silence is counted, at each."""


class Lease:
    """Counts how long a peer has been silent. Any message of the peer renews it.

    Silence is counted in ticks of the process that listens, not by a clock. While that process is
    held up, by a long step or a full machine, the peer's messages may lie unread in a socket; a
    tick that comes late still counts as one. So a peer is lost only after a lease in which the
    listener itself was awake, and no arithmetic on remaining times depends on a timer's precision.

    A lease ends after one to 1 + 1/TICKS_PER_LEASE times `lease_s` of silence, never earlier.
    """

    def __init__(self, peer: str, lease_s: float) -> None:
        """peer: how the error names it. lease_s: seconds."""
        self._peer = peer
        self._lease_s = lease_s
        self._silent_ticks = 0

    @property
    def tick_s(self) -> float:
        """Seconds from one tick to the next."""
        return self._lease_s / TICKS_PER_LEASE

    def heard(self) -> None:
        """Renew the lease: the peer has said something."""
        self._silent_ticks = 0

    def tick(self) -> None:
        """Count one tick of silence. Raises PeerSilentError when the lease is over."""
        self._silent_ticks += 1
        # The first tick may come at once after the peer was heard, so it does not count.
        if self._silent_ticks > TICKS_PER_LEASE:
            raise PeerSilentError(f"{self._peer} was silent for its lease of {self._lease_s:g} s")

    async def watch(
        self,
        beat: Callable[[], None] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Call `beat` and count a tick, several times a lease, until PeerSilentError is raised."""
        while True:
            if beat is not None:
                beat()
            await sleep(self.tick_s)
            self.tick()
