"""Several streams as one."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

from baton.core.supervised import child

T = TypeVar("T")

_AHEAD = 64
"""Items that are buffered for a slow reader. After that the streams are not read."""


async def interleave(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Yield the items of all streams as they come, up to the end of the last.

    The first failure is raised. That, and closing the generator, closes all streams.
    """
    ready: asyncio.Queue[T | _End] = asyncio.Queue(_AHEAD)
    pumps = [child(_pump(stream, ready)) for stream in streams]
    running = len(pumps)
    try:
        while running:
            item = await ready.get()
            if not isinstance(item, _End):
                yield item
                continue
            running -= 1
            if item.error is not None:
                raise item.error
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


class _End:
    """The end of one stream."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error


async def _pump(stream: AsyncGenerator[T, None], ready: "asyncio.Queue[T | _End]") -> None:
    error: Exception | None = None
    try:
        async with aclosing(stream):
            async for item in stream:
                await ready.put(item)
    except Exception as err:  # any error must reach the reader, which would wait for ever
        error = err
    await ready.put(_End(error))
