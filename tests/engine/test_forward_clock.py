"""The time of a step: on the host, and between two events of a device, without a wait."""

import pytest
import torch
from engine.engines import greedy, make_engine, run

from baton.engine.forward import runner
from baton.engine.request.request import RequestSpec
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.engine.stream.forward_clock import (
    EventClock,
    EventTimer,
    HostClock,
    forward_clock,
)


class Device:
    """A device's stream: it passes what was enqueued when it is told to. `now`: milliseconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waiting: list[Event] = []

    def advance(self, milliseconds: float, events: int) -> None:
        self.now += milliseconds
        for _ in range(events):
            self.waiting.pop(0).passed = self.now


class Event:
    """An event of such a stream, with CUDA's manners: one that was never recorded counts as passed,
    and it has no time."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._recorded = False
        self.passed: float | None = None

    def record(self) -> None:
        self._recorded = True
        self._device.waiting.append(self)

    def query(self) -> bool:
        return not self._recorded or self.passed is not None

    def elapsed_time(self, end_event: "Event") -> float:
        assert self.passed is not None and end_event.passed is not None, "CUDA raises here"
        return end_event.passed - self.passed

    def synchronize(self) -> None:
        raise AssertionError("a step waited for the device")


def test_the_host_clock_measures_from_start_to_stop() -> None:
    now = iter([3.0, 5.5])
    timer = HostClock(lambda: next(now)).start()
    assert timer.seconds() is None
    timer.stop()
    assert timer.seconds() == timer.seconds() == 2.5


def test_the_event_clock_measures_the_device_and_knows_nothing_before_it_is_there() -> None:
    device = Device()
    clock = EventClock(lambda: Event(device))
    first = clock.start()
    first.stop()
    second = clock.start()
    assert [first.seconds(), second.seconds()] == [None, None]  # stop was not called, or not passed
    second.stop()
    device.advance(7.0, events=1)
    assert first.seconds() is None  # it has begun
    device.advance(250.0, events=1)
    assert first.seconds() == 0.25
    assert second.seconds() is None
    device.advance(1.0, events=1)
    device.advance(30.0, events=1)
    assert (first.seconds(), second.seconds()) == (0.25, 0.03)


def test_the_clock_is_that_of_the_device() -> None:
    assert isinstance(forward_clock(torch.device("cpu")), HostClock)
    assert isinstance(forward_clock(torch.device("cuda:1")), EventClock)


@pytest.mark.parametrize("passes", [True, False])
def test_an_engine_learns_by_events_and_goes_on_without_them(
    monkeypatch: pytest.MonkeyPatch, passes: bool
) -> None:
    """Nobody waits for an event, although the device has passed none of them."""
    device, timers = Device(), list[EventTimer]()

    class PassedEvent(Event):
        """An event that the device passes as soon as it is recorded. (The forward thread may begin
        its next step before or after the engine reads this one's time.)"""

        def record(self) -> None:
            super().record()
            device.advance(1.0, events=1)

    class Clock(EventClock):
        def start(self) -> EventTimer:
            timers.append(super().start())
            return timers[-1]

    event = PassedEvent if passes else Event
    monkeypatch.setattr(runner, "forward_clock", lambda _: Clock(lambda: event(device)))
    engine = make_engine(speculative_algorithm=SpeculativeAlgorithm.AUTO)
    engine.submit(RequestSpec("r", (1, 2, 3), greedy(20)))
    run(engine)
    assert len(timers) == engine.counters.steps > 3
    assert bool(engine._scheduler.speeds.decode_step_s) is passes
