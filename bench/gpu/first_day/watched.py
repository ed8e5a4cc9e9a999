"""The watching of an engine's steps: where the host waits for the GPU, and what the GPU does.

Two views, since neither sees everything: torch warns where one of its operations waits, with the
Python stack; the profiler sees each call of CUDA's, whoever makes it, but not from where.
"""

import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, NamedTuple, TextIO, TypeVar

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from baton.engine.stream.forward_stream import ForwardStream, Pending

P = TypeVar("P")
T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[3]
_SAID = "called a synchronizing CUDA operation"  # torch's warning of a wait
_SETTLE_S = 0.1  # until the device has finished the last steps; the profiler then waits for it
_WAITING = (
    "cudaMalloc",
    "cudaFree",
    "cudaHostAlloc",
    "cudaFreeHost",
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cuStreamSynchronize",
    "cuCtxSynchronize",
)
"""Calls that make the host wait for the device, or the device for the host."""
_PAGEABLE = ("Memcpy HtoD (Pageable", "Memcpy DtoH (Device -> Pageable")


@dataclass
class Waits:
    """The places where torch has waited for the GPU, as `file:line function`, and how often.

    Only on the thread that watches, which runs the steps: copies beside them wait on their own.
    """

    places: Counter[str] = field(default_factory=Counter)
    thread: int = field(default_factory=threading.get_ident)

    def note(self, message: Warning | str, category: type[Warning], filename: str, lineno: int,
             file: TextIO | None = None, line: str | None = None) -> None:  # fmt: skip
        """Count the place if this is torch's warning of a wait. Python calls it, where it warns."""
        if _SAID in str(message) and threading.get_ident() == self.thread:
            self.places[place(traceback.extract_stack()[:-1])] += 1


def place(stack: Sequence[traceback.FrameSummary]) -> str:
    """Return the innermost frame of our code, but for this file's, or else the innermost."""
    known = [(Path(frame.filename).resolve(), frame) for frame in stack]
    here = Path(__file__).resolve()
    ours = [(path, frame) for path, frame in known if path != here and _is_ours(path)]
    path, frame = (ours or known)[-1]
    return f"{path.relative_to(ROOT) if ours else path}:{frame.lineno} {frame.name}"


def _is_ours(path: Path) -> bool:
    return ROOT in path.parents and "site-packages" not in path.parts


@contextmanager
def watched_waits(device: torch.device) -> Iterator[Waits]:
    """Yield the places where torch waits inside.

    In torch's mode "warn", which waits where "error" would raise: an error tells the first place
    alone, and cuts the step short whose other places were to be seen.
    """
    found = Waits()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = found.note
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            if device.type == "cuda":
                torch.cuda.set_sync_debug_mode("default")


class WatchedStream:
    """A stream that sums the seconds which its caller waits for results."""

    def __init__(self, stream: ForwardStream) -> None:
        self._stream = stream
        self.waited_s = 0.0

    def submit(self, work: Callable[[], T]) -> Pending[T]:
        """See `ForwardStream`."""
        return _Watched(self._stream.submit(work), self)

    def submit_prepared(self, prepare: Callable[[], P], work: Callable[[P], T]) -> Pending[T]:
        """See `ForwardStream`."""
        return _Watched(self._stream.submit_prepared(prepare, work), self)

    def mark(self, then: Callable[[], None]) -> None:
        """See `ForwardStream`."""
        self._stream.mark(then)

    def close(self) -> None:
        """See `ForwardStream`."""
        self._stream.close()


class _Watched(Generic[T]):
    """Work under way on a watched stream."""

    def __init__(self, pending: Pending[T], stream: WatchedStream) -> None:
        self._pending = pending
        self._stream = stream

    def result(self, timeout: float | None = None) -> T:
        """Wait for the work, and count the time."""
        began = time.perf_counter()
        try:
            return self._pending.result(timeout)
        finally:
            self._stream.waited_s += time.perf_counter() - began


class Activity(NamedTuple):
    """One event of the profiler. on_device: a kernel or a copy; else a call on the host."""

    name: str
    begin_ns: int
    end_ns: int
    on_device: bool


def profiled(device: torch.device, work: Callable[[], None]) -> list[Activity]:
    """Return what the profiler has seen of `work`; on a CPU it sees operators, none on a device."""
    kind = ProfilerActivity.CUDA if device.type == "cuda" else ProfilerActivity.CPU
    with profile(activities=[kind]) as watched:
        work()
        time.sleep(_SETTLE_S)
    if watched.profiler is None or watched.profiler.kineto_results is None:
        return []
    return [
        Activity(
            event.name(),
            event.start_ns(),
            event.start_ns() + event.duration_ns(),
            event.device_type() == DeviceType.CUDA,
        )
        for event in watched.profiler.kineto_results.events()
    ]


def waiting_calls(activities: Iterable[Activity]) -> Counter[str]:
    """Count the calls that wait, and the copies that are not from or to pinned memory, by name.

    Calls before the device's first activity and after its last are the profiler's own.
    """
    known = list(activities)
    on_device = [each for each in known if each.on_device]
    if not on_device:
        return Counter()
    begin = min(each.begin_ns for each in on_device)
    end = max(each.end_ns for each in on_device)
    inside = [each.name for each in known if begin <= each.begin_ns <= end]
    return Counter(name for name in inside if name.partition("_v")[0] in _WAITING) + Counter(
        name for name in inside if name.startswith(_PAGEABLE)
    )


def idle_share(activities: Iterable[Activity]) -> float | None:
    """Return the share of the time from the first activity on the device to the last in which it
    ran none; None where it ran none at all."""
    spans = sorted((each.begin_ns, each.end_ns) for each in activities if each.on_device)
    if not spans:
        return None
    first, reached = spans[0][0], spans[0][0]
    busy = 0
    for begin, end in spans:
        busy += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return 1 - busy / (reached - first) if reached > first else 0.0


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` of the values lie below."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
