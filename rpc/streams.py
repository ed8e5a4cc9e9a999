"""The parts that every long-lived stream between two processes is made of."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Generic, TypeVar

from baton.core.supervised import child

M = TypeVar("M")


class Outbox(Generic[M]):
    """Messages that wait to be written. `put` never waits; one task drains."""

    def __init__(self) -> None:
        self._waiting: deque[M] = deque()
        self._filled: asyncio.Future[None] | None = None  # the task that drains waits for it

    def put(self, message: M) -> None:
        """Append a message."""
        self._waiting.append(message)
        if self._filled is not None and not self._filled.done():
            self._filled.set_result(None)

    async def drain(
        self,
        write: Callable[[M], Awaitable[None]],
        join: Callable[[list[M]], Iterable[M]] | None = None,
    ) -> None:
        """Write messages in order, until cancelled.

        join: makes fewer messages of those that wait together, two or more; None: each is written
        by itself.
        """
        while True:
            if not self._waiting:
                self._filled = asyncio.get_running_loop().create_future()
                await self._filled
            if join is None or len(self._waiting) == 1:
                await write(self._waiting.popleft())
                continue
            waiting = [*self._waiting]
            self._waiting.clear()
            for message in join(waiting):
                await write(message)


async def first_of(*parts: Coroutine[Any, Any, None]) -> None:
    """Run all parts until the first ends, then cancel the others. Raises what the first raised.

    A part that ends cancelled was not cancelled here: grpc.aio cancels a reader whose call another
    part has cancelled, as a write does that runs into a deadline. The other part's reason counts;
    without one, asyncio.InvalidStateError is raised.
    """
    tasks = [child(part) for part in parts]
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
        # Not `await task` with CancelledError suppressed: that would suppress the cancellation of
        # the caller too, and it would go on as if nobody had ended it.
        await asyncio.gather(*tasks, return_exceptions=True)


def check_cancelled() -> None:
    """Raise CancelledError if this task was cancelled, whatever it has raised since.

    For loops that begin a call anew after an error: of a task that is cancelled while a call
    begins and fails, grpc.aio raises the call's status instead.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
