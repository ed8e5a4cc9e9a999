"""Something that others wait for has changed; they look again."""

import asyncio


class Changed:
    """Wakes all who wait now, and none who come later."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def fire(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, timeout_s: float) -> None:
        """Until `fire`, or the time is up; the caller looks again in either case."""
        event = self._event
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            return
