"""A wake-up for tasks that wait for a change."""

import asyncio


class Notifier:
    """An event that wakes every task that waits at the moment, and none that comes later."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Wake all waiting tasks."""
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, timeout_s: float | None) -> None:
        """Wait for `notify`, but no longer than `timeout_s`; None: however long.

        The caller checks its condition again in either case.
        """
        event = self._event
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            return
