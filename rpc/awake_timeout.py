"""A timeout for a peer's message that does not count while this process is held up."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_TICKS = 5


@asynccontextmanager
async def awake_timeout(seconds: float) -> AsyncIterator[None]:
    """Raise TimeoutError if the context takes longer than `seconds` in which this process ran.

    The process that listens may be held up, by a full machine or a long call, while the message
    lies unread in a socket. By a clock the time would be over when the process goes on. So the time
    is cut into ticks, and a tick that comes more than a tick late does not count. As many as count
    may be late; then the time is over, too.
    """
    loop = asyncio.get_running_loop()
    tick_s = seconds / _TICKS
    counted = late = 0
    next_tick: asyncio.TimerHandle
    async with asyncio.timeout(None) as limit:

        def tick(due_s: float) -> None:
            nonlocal counted, late, next_tick
            if loop.time() - due_s > tick_s and late < _TICKS:
                late += 1
            else:
                counted += 1
            if counted == _TICKS:
                limit.reschedule(loop.time())
            else:
                next_tick = begin()

        def begin() -> asyncio.TimerHandle:
            due_s = loop.time() + tick_s
            return loop.call_at(due_s, tick, due_s)

        next_tick = begin()
        try:
            yield
        finally:
            next_tick.cancel()
