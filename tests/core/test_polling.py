"""The waiting of tests themselves: it ends with what came, or says what did not."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
from kit.polling import until, until_asked, wait_until


@pytest.fixture
def third() -> Iterator[int | None]:
    """Return looks of which the third is the first true one."""
    return iter((None, 0, 7, 8))


async def test_until_returns_the_first_true_look(third: Iterator[int | None]) -> None:
    assert await until(lambda: next(third)) == 7


async def test_other_tasks_run_while_until_looks() -> None:
    come: list[int] = []
    asyncio.get_running_loop().call_soon(come.append, 5)
    assert await until(lambda: come) == [5]


async def test_a_question_is_asked_on_another_thread(third: Iterator[int | None]) -> None:
    here, asked_on = threading.get_ident(), set[int]()

    def ask() -> int | None:
        asked_on.add(threading.get_ident())
        return next(third)

    assert await until_asked(ask) == 7
    assert here not in asked_on


def test_wait_until_needs_no_event_loop(third: Iterator[int | None]) -> None:
    assert wait_until(lambda: next(third)) == 7


async def test_what_does_not_come_is_described() -> None:
    missing = r"not within 0 s; \['seen'\]"
    with pytest.raises(AssertionError, match=missing):
        await until(lambda: False, lambda: ["seen"], deadline_s=0.0)
    with pytest.raises(AssertionError, match=missing):
        await until_asked(lambda: False, lambda: ["seen"], deadline_s=0.0)
    with pytest.raises(AssertionError, match=missing):
        wait_until(lambda: False, lambda: ["seen"], deadline_s=0.0)
