"""A measurement of how long this machine kept a process from running: an overloaded machine may do
so for a whole lease."""

import asyncio
import itertools
import time

PERIOD_S = 0.05


class Pulse:
    """A measurement of how long the event loop that runs `beat` was held up."""

    def __init__(self) -> None:
        self._latest_s = 0.0
        self._began = time.monotonic()

    async def beat(self) -> None:
        """Measure the loop's delays until cancelled."""
        for _ in itertools.count():
            self._began = time.monotonic()
            await asyncio.sleep(PERIOD_S)  # the beat
            self._latest_s = max(self._latest_s, self._late_s())

    def take_s(self) -> float:
        """The longest that it was held up since the last call; up to now, where `beat` has yet to
        wake from it."""
        latest_s, self._latest_s = max(self._latest_s, self._late_s()), 0.0
        return latest_s

    def _late_s(self) -> float:
        return time.monotonic() - self._began - PERIOD_S
