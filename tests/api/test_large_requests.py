"""The process that reads large requests: one job at a time, the smallest first."""

import asyncio
import os
import signal
import time
from array import array
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import psutil
import pytest
from kit.narrowing import present
from kit.polling import until

from baton.api.large.held_bytes import BodyFile, HeldBytes
from baton.api.large.job import EncodeJob
from baton.api.large.process import SHORT_BYTES, LargeRequestProcess
from baton.api.large.requests import BURST_S, BYTES_PER_S, LargeRequests, Pace
from baton.api.large.turns import Turns
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.text.tokenizer import Tokenizer

ANY = 1 << 30
WAIT_S = 60.0
LONG = "word " * (SHORT_BYTES // 4)


@pytest.fixture
def large(folder: Path) -> Iterator[LargeRequests]:
    made = LargeRequests(folder)
    yield made
    made.close()


def job(most: int = ANY, special: bool = True) -> EncodeJob:
    return EncodeJob(special, "prompt", most)


async def test_it_says_what_the_tokenizer_says(large: LargeRequests, tokenizer: Tokenizer) -> None:
    for text in ("hello world " * 500, "naïve café €5 日本語 😀 end" * 2000):
        for special in (True, False):
            ids = array("i", tokenizer.encode(text, special))
            assert await large.encode(job(ANY, special), text) == ids
            assert await large.encode(job(len(ids), special), text) == ids
            with pytest.raises(ApiError, match=f"context length is {len(ids) - 1}") as caught:
                await large.encode(job(len(ids) - 1, special), text)
            assert caught.value.param == "prompt"
    with pytest.raises(ApiError, match="surrogate"):
        await large.encode(job(), "a\ud800")


async def test_a_process_that_was_lost_between_two_jobs_is_replaced(large: LargeRequests) -> None:
    large.start()
    first = large._short._child
    assert first is not None
    first.kill()
    first.wait(WAIT_S)
    assert await large.encode(job(), "ab")
    second = large._short._child
    assert second is not None and second.pid != first.pid


async def test_a_process_that_was_lost_leaves_no_zombie(large: LargeRequests) -> None:
    await large.encode(job(), "hello")
    child = large._short._child
    assert child is not None
    os.kill(child.pid, signal.SIGKILL)  # as the kernel does, which tells nobody
    await until(lambda: not psutil.pid_exists(child.pid))


async def test_a_job_whose_process_was_lost_is_refused_and_the_next_is_not(
    large: LargeRequests,
) -> None:
    task = asyncio.create_task(large.encode(job(), 8 * LONG))
    await until(lambda: large._long._child is not None)
    present(large._long._child).kill()
    with pytest.raises(ApiError, match="was lost") as caught:
        await task
    assert caught.value.code is ErrorCode.OVERLOADED
    assert await large.encode(job(), LONG)


async def test_a_process_is_started_once(large: LargeRequests) -> None:
    large.start()
    child = large._short._child
    large.start()
    assert await large.encode(job(), "ab")
    assert large._short._child is child


async def test_a_short_text_does_not_wait_for_a_long_one(large: LargeRequests) -> None:
    long = asyncio.create_task(large.encode(job(), LONG))
    assert await large.encode(job(), "hello")
    assert not long.done()
    long.cancel()
    await asyncio.wait([long])


async def test_a_short_text_that_is_given_up_leaves_the_process_to_the_next(
    large: LargeRequests,
) -> None:
    ids = await large.encode(job(), "hello")
    before = large._short._child
    text = "hello world " * 50_000
    task = asyncio.create_task(large.encode(job(), text))
    await asyncio.sleep(0.01)  # the child has begun, or has not: both must hold
    task.cancel()
    assert await large.encode(job(), "hello") == ids
    assert large._short._child is before and task.cancelled()


async def test_what_takes_too_long_is_refused(folder: Path) -> None:
    slow = LargeRequestProcess(folder, deadline_s=0.0)
    with pytest.raises(ApiError, match="took longer than 0 s"):
        async with held("hello") as file:
            await slow.run(job(), file)
    slow.end()


@asynccontextmanager
async def held(text: str) -> AsyncIterator[BodyFile]:
    with HeldBytes().open() as file:
        file.write(text.encode())
        yield file


def test_what_is_held_is_bounded_and_given_back() -> None:
    held = HeldBytes(most=10, files=2)
    with held.open() as one, held.open() as two:
        one.write(b"1234567")
        with pytest.raises(ApiError, match="too many large requests") as caught:
            two.write(b"1234")
        assert caught.value.code is ErrorCode.OVERLOADED
        two.write(b"123")
        with pytest.raises(ApiError, match="too many large requests"):
            held.open()
    assert held.bytes == held.files == 0


async def test_the_smallest_is_next_and_a_cancelled_wait_has_no_turn() -> None:
    turns, order, go_on = Turns(), list[int](), asyncio.Event()

    async def take(size: int) -> None:
        async with turns.turn(size):
            order.append(size)
            await go_on.wait()

    tasks = {size: asyncio.create_task(take(size)) for size in (5, 9, 1, 7, 3)}
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.wait(tasks.values())
    assert order == [5, 3, 7, 9]
    async with asyncio.timeout(60), turns.turn(1):
        pass


async def test_a_turn_that_comes_with_a_cancel_is_passed_on() -> None:
    turns = Turns()
    first, second = asyncio.Event(), asyncio.Event()

    async def take(begun: asyncio.Event) -> None:
        async with turns.turn(1):
            begun.set()

    async with turns.turn(1):
        leaving = asyncio.create_task(take(first))
        staying = asyncio.create_task(take(second))
        await asyncio.sleep(0)
    leaving.cancel()  # it has the turn, and has not run since
    await asyncio.wait_for(staying, 60)
    assert leaving.cancelled() and not first.is_set() and second.is_set()


async def test_large_bodies_are_received_at_a_pace() -> None:
    pace, began = Pace(), time.monotonic()
    await asyncio.gather(*(pace.took(1 << 20) for _ in range(10)))
    assert time.monotonic() - began >= (10 << 20) / BYTES_PER_S - BURST_S


def test_one_key_or_address_cannot_hold_all_files_or_bytes() -> None:
    held = HeldBytes(most=400, files=8)
    with ExitStack() as open_:
        for at in range(2):
            open_.enter_context(held.open({"key ada", f"address {at}"}))
        with pytest.raises(ApiError):
            held.open({"key ada", "address 9"})
        other = open_.enter_context(held.open({"key ben", "address 0"}))
        with pytest.raises(ApiError):
            held.open({"key eve", "address 0"})
        other.write(bytes(100))
        with pytest.raises(ApiError):
            other.write(b"x")
        open_.enter_context(held.open({"key eve", "address 9"})).write(bytes(100))
    assert (held.files, held.bytes) == (0, 0)
    with held.open({"key ada", "address 0"}) as again:
        again.write(bytes(100))
