"""Whether this machine lets a process run: a full one may hold it up for a lease."""

import asyncio
import itertools
import time

PERIOD_S = 0.05


class Pulse:
    """Of the loop that `beat` runs on."""

    def __init__(self) -> None:
        self._latest_s = 0.0

    async def beat(self) -> None:
        """Until cancelled."""
        for _ in itertools.count():
            began = time.monotonic()
            await asyncio.sleep(PERIOD_S)
            self._latest_s = max(self._latest_s, time.monotonic() - began - PERIOD_S)

    def take_s(self) -> float:
        """The longest that it was held up since the last call."""
        latest_s, self._latest_s = self._latest_s, 0.0
        return latest_s
