"""A timeout that does not count while the process is held up."""

import asyncio
import time

import pytest

from baton.rpc.awake_timeout import awake_timeout

SECONDS = 0.2


async def test_what_came_while_the_process_was_held_up_is_read() -> None:
    async with awake_timeout(SECONDS):
        answer = asyncio.to_thread(time.sleep, 0.01)
        asyncio.get_running_loop().call_soon(time.sleep, 2 * SECONDS)
        await answer  # by the clock it is too late


async def test_silence_is_too_long() -> None:
    with pytest.raises(TimeoutError):
        async with awake_timeout(SECONDS):
            await asyncio.Event().wait()


async def test_a_process_that_is_always_held_up_gives_up_too() -> None:
    loop = asyncio.get_running_loop()

    async def hold_up() -> None:
        while True:
            time.sleep(SECONDS / 2)  # the process is held up
            await asyncio.sleep(0)

    holding = loop.create_task(hold_up())
    with pytest.raises(TimeoutError):
        async with awake_timeout(SECONDS):
            await asyncio.Event().wait()
    holding.cancel()


async def test_what_is_in_time_raises_what_it_raises() -> None:
    with pytest.raises(ValueError, match="wrong"):
        async with awake_timeout(SECONDS):
            raise ValueError("wrong")
    await asyncio.sleep(2 * SECONDS)  # nothing is cancelled afterwards
