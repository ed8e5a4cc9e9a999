"""The thread that looks: while something is under way, and never else."""

import asyncio
import queue
import threading
from collections.abc import Iterator

import pytest
from kit.polling import until

from baton.core.supervised import ProcessSupervisor
from baton.transfer.channels.poller import LONGEST_S, SHARE, SHORTEST_S, Poller, Work, pause_s
from baton.transfer.errors import ChannelError

DEADLINE_S = 60.0


class Told:
    """Answers what it is told to, then that there is no work."""

    def __init__(self, *answers: Work) -> None:
        self.looks = 0
        self.over = threading.Event()
        self._answers = list(answers)

    def poll(self) -> Work:
        self.looks += 1
        if self._answers:
            return self._answers.pop(0)
        self.over.set()
        return Work.NONE

    def fail(self, why: ChannelError) -> None:
        pytest.fail(f"it has not raised: {why}")


class Failing:
    """Raises when it is polled."""

    def __init__(self, error: Exception) -> None:
        self.told: queue.Queue[ChannelError] = queue.Queue()
        self._error = error

    def poll(self) -> Work:
        raise self._error

    def fail(self, why: ChannelError) -> None:
        self.told.put(why)


@pytest.fixture
def poller() -> Iterator[Poller]:
    made = Poller("tested", ProcessSupervisor())
    yield made
    made.stop()


def made_calls(poller: Poller) -> None:
    """Whatever the thread was to look at before, it has looked at."""
    called = threading.Event()
    poller.call(called.set)
    assert called.wait(DEADLINE_S)


def test_it_looks_while_there_is_work_and_not_once_more(poller: Poller) -> None:
    told = Told(Work.MOVING, Work.WAITING, Work.WAITING)
    made_calls(poller)
    assert told.looks == 0
    poller.wake(told)
    assert told.over.wait(DEADLINE_S)
    for _ in range(20):
        made_calls(poller)
    assert told.looks == 4


def test_who_is_woken_again_is_looked_at_again(poller: Poller) -> None:
    told = Told()
    for count in (1, 2, 3):
        told.over.clear()
        poller.wake(told)
        assert told.over.wait(DEADLINE_S)
        made_calls(poller)
        assert told.looks == count


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ChannelError("the peer has gone"), "the peer has gone"),
        (IndexError("page 7"), "the channel has failed: IndexError: page 7"),
    ],
)
def test_a_poll_that_fails_is_told_why_and_nobody_else(
    poller: Poller, error: Exception, told: str
) -> None:
    failing, well = Failing(error), Told(Work.WAITING, Work.WAITING)
    for _ in range(2):  # it may be woken again
        poller.wake(failing)
        assert str(failing.told.get(timeout=DEADLINE_S)) == told
    poller.wake(well)
    assert well.over.wait(DEADLINE_S)
    made_calls(poller)
    assert failing.told.empty()


async def test_a_call_that_fails_ends_no_other(poller: Poller) -> None:
    def fail() -> None:
        raise ValueError("a fault")

    poller.call(fail)
    async with asyncio.timeout(DEADLINE_S):
        await poller.run(fail)
    made_calls(poller)


def test_a_call_is_made_once_and_also_after_the_end() -> None:
    poller, calls = Poller("tested", ProcessSupervisor()), []
    poller.call(lambda: calls.append(threading.current_thread().name))
    poller.stop()
    poller.call(lambda: calls.append(threading.current_thread().name))
    assert calls == ["tested", threading.current_thread().name]


async def test_a_poller_that_has_failed_ends_the_process_and_still_makes_calls() -> None:
    """Whoever stops the worker waits for calls of channels that close."""
    begin = threading.Event()

    def broken() -> None:
        assert begin.wait(DEADLINE_S)
        raise ValueError("no such device")

    owner, called = ProcessSupervisor(), threading.Event()
    poller = Poller("transfers", owner, broken)
    poller.call(called.set)
    begin.set()
    await until(lambda: owner.reason)
    async with asyncio.timeout(DEADLINE_S):
        assert called.wait(DEADLINE_S), "it was asked before the failure"
        await poller.run(lambda: None)
    assert owner.reason == "transfers ended: ValueError: no such device"
    poller.stop()


def test_waiting_costs_a_share_of_what_is_waited_for() -> None:
    for still_s in (0.0, 1e-3, 5e-3, 20e-3, 60.0):
        assert SHORTEST_S <= pause_s(still_s) <= LONGEST_S
        assert pause_s(still_s) <= max(SHORTEST_S, still_s * SHARE)
    assert pause_s(60.0) == LONGEST_S
