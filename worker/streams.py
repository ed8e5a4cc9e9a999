"""What every long-lived stream between two processes needs."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

from baton.worker.errors import PeerSilentError

M = TypeVar("M")
BEATS_PER_LEASE = 4
"""Heartbeats in one lease."""


class Outbox(Generic[M]):
    """Messages that wait to be written. `put` never waits; one task drains."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[M] = asyncio.Queue()

    def put(self, message: M) -> None:
        self._queue.put_nowait(message)

    async def drain(self, write: Callable[[M], Awaitable[None]]) -> None:
        """Until cancelled."""
        while True:
            await write(await self._queue.get())


class Lease:
    """Has the peer been heard from lately? Any message counts."""

    def __init__(self, peer: str, lease_s: float) -> None:
        self._peer = peer
        self._lease_s = lease_s
        self._clock = asyncio.get_running_loop().time
        self._heard = self._clock()

    def heard(self) -> None:
        self._heard = self._clock()

    async def watch(self, beat: Callable[[], None] | None = None) -> None:
        """Call `beat` several times a lease; raise PeerSilentError after a lease of silence."""
        while True:
            if beat is not None:
                beat()
            before = self._clock()
            await asyncio.sleep(self._lease_s / BEATS_PER_LEASE)
            now = self._clock()
            if now - before > self._lease_s:
                self._heard = now  # this process was held up; the silence may be its own
            elif now - self._heard >= self._lease_s:
                raise PeerSilentError(f"{self._peer} was silent for its lease, {self._lease_s:g} s")


async def first_of(*parts: Coroutine[Any, Any, None]) -> None:
    """Run all until the first ends, then end the others. Raises what the first raised."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
