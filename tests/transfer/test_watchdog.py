"""A deadline for steps, on a loop whose clock the test moves."""

import asyncio
from collections.abc import Callable

import pytest

from baton.transfer.channels.watchdog import Watchdog

DEADLINE_S = 5.0


class Clock:
    """A fake of the parts of a loop that a watchdog uses: time, and one timer."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, call: Callable[[], None]) -> "Clock":
        self.timers.append((self.now_s + delay_s, call))
        return self

    def cancel(self) -> None:
        self.timers.clear()

    def pass_s(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.timers and self.timers[0][0] <= end_s:
            self.now_s, call = self.timers.pop(0)
            call()
        self.now_s = end_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: clock)
    return clock


def test_a_step_may_take_its_deadline_and_no_longer(clock: Clock) -> None:
    late: list[float] = []
    dog = Watchdog(DEADLINE_S, lambda: late.append(clock.now_s))
    clock.pass_s(3.0)
    dog.begin()
    clock.pass_s(DEADLINE_S - 0.01)
    assert not late
    clock.pass_s(0.02)
    assert late == [103.0 + DEADLINE_S]
    clock.pass_s(100.0)
    assert len(late) == 1, "told once"


def test_many_short_steps_are_never_late_and_share_one_timer(clock: Clock) -> None:
    late: list[float] = []
    dog = Watchdog(DEADLINE_S, lambda: late.append(clock.now_s))
    for _ in range(100):
        dog.begin()
        clock.pass_s(DEADLINE_S * 0.9)
        assert len(clock.timers) == 1
    assert not late


def test_between_steps_time_does_not_count(clock: Clock) -> None:
    late: list[float] = []
    dog = Watchdog(DEADLINE_S, lambda: late.append(clock.now_s))
    dog.begin()
    clock.pass_s(1.0)
    dog.rest()
    clock.pass_s(10 * DEADLINE_S)
    assert not late
    dog.begin()
    dog.stop()
    clock.pass_s(10 * DEADLINE_S)
    assert not late and not clock.timers
