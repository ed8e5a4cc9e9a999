"""The parts that streams are made of."""

import asyncio
import contextlib

import pytest

from baton.rpc.streams import Outbox, first_of

DEADLINE_S = 30.0


async def test_the_first_part_to_end_ends_the_others() -> None:
    ended = []

    async def forever(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    async def broken() -> None:
        await asyncio.sleep(0)
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await first_of(forever("a"), broken(), forever("b"))
    assert sorted(ended) == ["a", "b"]


async def test_who_reads_a_call_that_another_part_has_cancelled_does_not_hide_why() -> None:
    """grpc.aio says CancelledError to the reader: taken for our own end, nobody would try again."""

    async def late(lost: asyncio.Event) -> None:
        lost.set()
        raise TimeoutError("the write was late")

    async def reads(lost: asyncio.Event) -> None:
        await lost.wait()
        raise asyncio.CancelledError

    for _ in range(50):  # they end in one turn of the loop, in any order
        lost = asyncio.Event()
        with pytest.raises(TimeoutError, match="the write was late"):
            await first_of(reads(lost), late(lost))
    with pytest.raises(asyncio.InvalidStateError, match="cancelled"):
        await first_of(reads(lost), asyncio.sleep(DEADLINE_S))  # is cancelled


async def test_who_is_cancelled_while_the_other_parts_end_stays_cancelled() -> None:
    """Its caller would otherwise connect again, for ever, while somebody waits for its end."""
    ending, ended = asyncio.Event(), asyncio.Event()

    async def slow_to_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await ended.wait()

    async def lost() -> None:
        raise ConnectionError

    async def attends() -> None:
        for _ in range(3):
            with contextlib.suppress(ConnectionError):
                await first_of(slow_to_end(), lost())

    attending = asyncio.ensure_future(attends())
    async with asyncio.timeout(DEADLINE_S):
        await ending.wait()
        attending.cancel()
        await asyncio.sleep(0)
        ended.set()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.shield(attending)


async def test_messages_that_wait_together_are_joined_and_one_alone_is_not() -> None:
    outbox, written, joined = Outbox[int](), [], []
    free = asyncio.Event()

    async def write(number: int) -> None:
        written.append(number)
        await free.wait()

    def join(numbers: list[int]) -> list[int]:
        joined.append(numbers)
        return [sum(numbers), -1]

    draining = asyncio.ensure_future(outbox.drain(write, join))
    async with asyncio.timeout(DEADLINE_S):
        outbox.put(7)
        while not written:
            await asyncio.sleep(0)
        for number in (1, 2, 3):  # while the first is being written
            outbox.put(number)
        free.set()
        while len(written) < 3:
            await asyncio.sleep(0)
    assert joined == [[1, 2, 3]] and written == [7, 6, -1]
    draining.cancel()


async def test_an_outbox_keeps_its_order() -> None:
    outbox, written = Outbox[int](), []
    for number in range(5):
        outbox.put(number)

    async def write(number: int) -> None:
        await asyncio.sleep(0)
        written.append(number)

    draining = asyncio.ensure_future(outbox.drain(write))
    async with asyncio.timeout(DEADLINE_S):
        while len(written) < 5:
            await asyncio.sleep(0)
    assert written == list(range(5))
    draining.cancel()


async def test_a_message_wakes_the_task_that_waits_for_one() -> None:
    outbox, written = Outbox[int](), asyncio.Queue[int]()
    draining = asyncio.ensure_future(outbox.drain(written.put))
    async with asyncio.timeout(DEADLINE_S):
        for number in range(3):
            for _ in range(3):  # until it waits
                await asyncio.sleep(0)
            outbox.put(number)
            assert await written.get() == number
    draining.cancel()
