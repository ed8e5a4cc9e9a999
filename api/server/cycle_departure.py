"""The end of a connection, told to the request that is answered on it."""

import asyncio
from collections.abc import Callable

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class CycleDeparture:
    """A `Departure` (`api/disconnect.py`) for one request. Its protocol calls `told`."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._leave: Callable[[], None] | None = None

    def watch(self, leave: Callable[[], None]) -> None:
        self._leave = leave
        self._cycle.flow.resume_reading()  # as `receive` does: else nobody hears of the end
        if self._cycle.disconnected:
            self.told()

    async def ignore(self) -> None:
        self._leave = None

    def told(self) -> None:
        """Hear that the client has disconnected."""
        if self._leave is not None:
            asyncio.get_running_loop().call_soon(self._call)

    def _call(self) -> None:
        if self._leave is not None:
            leave, self._leave = self._leave, None
            leave()
