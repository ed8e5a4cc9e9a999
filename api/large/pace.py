"""The pace at which large bodies are received, so that streams go on meanwhile."""

import asyncio
import time

BYTES_PER_S = 100 << 20
"""A quarter of a core. Tokenising what comes takes ten times as long."""
BURST_S = 0.005
"""The most time that was not used and may be used later."""


class Pace:
    """The bound on the bytes of all large bodies together.

    A server stops reading a connection until its last part was taken: a reader that waits keeps
    its client waiting, and no bytes pile up.
    """

    def __init__(self) -> None:
        self._due = 0.0  # when all parts so far have had their time

    async def took(self, size: int) -> None:
        """Wait for the end of the time that a part of `size` bytes may take."""
        now = time.monotonic()
        self._due = max(self._due, now - BURST_S) + size / BYTES_PER_S
        if self._due > now:
            await asyncio.sleep(self._due - now)
