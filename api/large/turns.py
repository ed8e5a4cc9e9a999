"""A lock whose next holder is the one with the least work."""

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """A lock. Of those that wait, the one with the smallest size is next; of equals, the first."""

    def __init__(self) -> None:
        self._taken = False
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []  # a heap
        self._numbers = itertools.count()

    @asynccontextmanager
    async def turn(self, size: int) -> AsyncIterator[None]:
        """Hold the lock. A wait that is cancelled leaves the queue."""
        if self._taken:
            place = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (size, next(self._numbers), place))
            try:
                await place
            except asyncio.CancelledError:
                if place.done() and not place.cancelled():
                    self._pass_on()
                raise
        self._taken = True
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        """Give the lock to the next that still waits, or free it."""
        while self._waiting:
            _, _, place = heapq.heappop(self._waiting)
            if not place.done():
                place.set_result(None)
                return
        self._taken = False
