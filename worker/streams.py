"""What every long-lived stream between two processes needs."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

from baton.worker.errors import PeerSilentError

M = TypeVar("M")
TICKS_PER_LEASE = 5
"""Heartbeats, and looks at the lease."""


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
    """Has the peer been heard from lately? Any message counts.

    Silence is counted in this process's own ticks: while it was held up itself, by a long step or a
    full machine, what the peer said may lie unread, and that time does not count.
    """

    def __init__(self, peer: str, lease_s: float) -> None:
        self._peer = peer
        self._lease_s = lease_s
        self._silent_ticks = 0

    def heard(self) -> None:
        self._silent_ticks = 0

    async def watch(self, beat: Callable[[], None] | None = None) -> None:
        """Call `beat` several times a lease; raise PeerSilentError after a lease of silence."""
        while self._silent_ticks < TICKS_PER_LEASE:
            if beat is not None:
                beat()
            await asyncio.sleep(self._lease_s / TICKS_PER_LEASE)
            self._silent_ticks += 1
        raise PeerSilentError(f"{self._peer} was silent for its lease, {self._lease_s:g} s")


async def first_of(*parts: Coroutine[Any, Any, None]) -> None:
    """Run all until the first ends, then end the others. Raises what the first raised.

    A part that ends cancelled was not cancelled here: grpc.aio says so to whoever reads a call that
    another part has cancelled, as a write does that runs into a deadline. That one's reason counts.
    """
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        ended = [task for task in done if not task.cancelled()]
        for task in ended:
            task.result()
        if not ended:
            raise asyncio.InvalidStateError("the call was cancelled")
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
