"""The time that a step takes on the device, measured without a wait."""

from collections.abc import Callable
from time import perf_counter
from typing import Any, Protocol

import torch


class ForwardTimer(Protocol):
    """The measurement of one step."""

    def stop(self) -> None:
        """Note the end of the step. Called where its work is enqueued."""
        ...

    def seconds(self) -> float | None:
        """Return what the step took; None while its end is not known. It never waits."""
        ...


class ForwardClock(Protocol):
    """A source of timers. `start` and `stop` are called inside the stream's work."""

    def start(self) -> ForwardTimer:
        """Note the beginning of a step."""
        ...


class HostClock:
    """The clock of a device whose work is done when the call that does it returns: a CPU."""

    def __init__(self, now: Callable[[], float] = perf_counter) -> None:
        self._now = now

    def start(self) -> "HostTimer":
        """See `ForwardClock`."""
        return HostTimer(self._now)


class HostTimer:
    """The host's seconds between the beginning and the end of a step."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._began = now()
        self._seconds: float | None = None

    def stop(self) -> None:
        """See `ForwardTimer`."""
        self._seconds = self._now() - self._began

    def seconds(self) -> float | None:
        """See `ForwardTimer`."""
        return self._seconds


class TimedEvent(Protocol):
    """The methods of `torch.cuda.Event` that a timer calls."""

    def record(self) -> None:
        """Enqueue the event on the current stream."""
        ...

    def query(self) -> bool:
        """Return true if the device has passed the event."""
        ...

    def elapsed_time(self, end_event: Any, /) -> float:
        """Return the milliseconds to another event, when the device has passed both."""
        ...


class EventClock:
    """The clock of a CUDA stream: events before and behind the work of a step.

    The host reads them when it collects the step, one step late. It asks whether the device has
    passed them and never waits for them.
    """

    def __init__(self, event: Callable[[], TimedEvent]) -> None:
        """event: makes an event that measures time."""
        self._event = event

    def start(self) -> "EventTimer":
        """See `ForwardClock`."""
        return EventTimer(self._event(), self._event())


class EventTimer:
    """The device's seconds between two events of a stream."""

    def __init__(self, first: TimedEvent, last: TimedEvent) -> None:
        self._first, self._last = first, last
        self._stopped = False
        first.record()

    def stop(self) -> None:
        """See `ForwardTimer`."""
        self._last.record()
        self._stopped = True

    def seconds(self) -> float | None:
        """See `ForwardTimer`."""
        # An event that was never recorded answers that the device has passed it.
        if not self._stopped or not self._last.query():
            return None
        return self._first.elapsed_time(self._last) / 1000.0


def forward_clock(device: torch.device) -> ForwardClock:
    """Return the clock for steps on `device`."""
    if device.type != "cuda":
        return HostClock()
    return EventClock(lambda: torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
