"""One deadline for many short steps, without a timer for each."""

import asyncio
import math
from collections.abc import Callable


class Watchdog:
    """A timer that calls `late` once, when a step has taken `deadline_s`.

    A step only reads the clock; the timer is set again only when it fires. Used on one loop's
    thread.
    """

    def __init__(self, deadline_s: float, late: Callable[[], object]) -> None:
        self.deadline_s = deadline_s
        self._late = late
        self._loop = asyncio.get_running_loop()
        self._began_s = math.inf  # by the loop's clock; infinite: no step is under way
        self._timer = self._loop.call_later(deadline_s, self._look)

    def begin(self) -> None:
        """Begin a step. The step before it, if any, has ended."""
        self._began_s = self._loop.time()

    def rest(self) -> None:
        """End the step that is under way."""
        self._began_s = math.inf

    def stop(self) -> None:
        """Cancel the timer."""
        self._timer.cancel()

    def _look(self) -> None:
        left_s = self._began_s + self.deadline_s - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(min(left_s, self.deadline_s), self._look)
        else:
            self._late()
