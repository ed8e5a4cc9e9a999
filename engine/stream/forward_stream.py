"""Streams that run forwards in order, beside the thread that plans them.

One interface: a FIFO worker thread on a CPU, a CUDA stream on a GPU, or at once in the caller.
Work that is submitted later never starts before what was submitted earlier has finished.
"""

import contextlib
import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Generic, Protocol, TypeVar

import torch

from baton.core.errors import DeviceLostError, InvariantError
from baton.core.supervised import submit
from baton.core.thread_name import show_name
from baton.engine.layout.device import use_device

_LOOK_S = 50e-6  # between two questions whether a step has ended: little beside any step

P = TypeVar("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Around = Callable[[], AbstractContextManager[object]]


class Pending(Protocol[T_co]):
    """Work under way."""

    def result(self, timeout: float | None = None) -> T_co:
        """Wait for it; raises what it raised, TimeoutError past `timeout` seconds."""
        ...


class ForwardStream(Protocol):
    def submit(self, work: Callable[[], T]) -> Pending[T]: ...

    def submit_prepared(self, prepare: Callable[[], P], work: Callable[[P], T]) -> Pending[T]:
        """Run `prepare` in the caller, while earlier work is under way, and `work` on its result
        after that. `prepare` may enqueue operations on a GPU's stream. An error in either is raised
        by the result.
        """
        ...

    def mark(self, then: Callable[[], None]) -> None:
        """Call `then`, on some thread, once the stream has finished what this work has enqueued so
        far. Called from inside of work.
        """
        ...

    def close(self) -> None:
        """Finish what was submitted, take nothing more."""
        ...


class InlineStream:
    """A stream whose work is done when submit returns: no overlap."""

    def submit(self, work: Callable[[], T]) -> Pending[T]:
        done: Future[T] = Future()
        try:
            done.set_result(work())
        except Exception as error:  # a model or a kernel may raise anything; it is the caller's
            done.set_exception(error)
        return done

    def submit_prepared(self, prepare: Callable[[], P], work: Callable[[P], T]) -> Pending[T]:
        return self.submit(lambda: work(prepare()))

    def mark(self, then: Callable[[], None]) -> None:
        then()

    def close(self) -> None:
        """Do nothing: no work is ever under way."""


class ThreadStream:
    """A FIFO worker thread.

    around: a context entered for each piece of work, on the stream's thread; tests delay the
    stream with it, or forbid reads from the device. preparing: the same, for what comes before it
    in the caller's.
    """

    def __init__(self, around: Around = nullcontext, preparing: Around = nullcontext) -> None:
        self._around = around
        self._preparing = preparing
        self._worker = ThreadPoolExecutor(
            max_workers=1,
            thread_name_prefix="forward",
            initializer=show_name,
            initargs=("forward",),
        )

    def submit(self, work: Callable[[], T]) -> Pending[T]:
        return submit(self._worker, _inside, self._around, work)

    def submit_prepared(self, prepare: Callable[[], P], work: Callable[[P], T]) -> Pending[T]:
        try:
            prepared = _inside(self._preparing, prepare)
        except Exception as error:  # a plan for a model may raise anything; it is the result's
            failed: Future[T] = Future()
            failed.set_exception(error)
            return failed
        return self.submit(partial(work, prepared))

    def mark(self, then: Callable[[], None]) -> None:
        """Call `then` now: work on a CPU is done when the call that does it returns."""
        then()

    def close(self) -> None:
        self._worker.shutdown(wait=True)


def _inside(around: Around, work: Callable[[], T]) -> T:
    with around():
        return work()


class CudaStream:
    """A CUDA stream: submit returns when the work is enqueued; `result` waits for its event.

    Work must leave its results in pinned host memory, by copies on the stream. The first waits for
    what the device was given until then: weights on their way, pools that are being cleared.

    A result raises DeviceLostError where the device takes no more work. The stream asks that of
    the device itself: of an error in the work alone, which may be Triton's or cuBLAS's, nobody can
    tell whether later steps would fail too.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._begun = False
        self._lost: InvariantError | None = None  # a mark has failed: set on the marks' thread
        # The pool's thread starts with the first mark and blocks in the driver until its event.
        self._marks = ThreadPoolExecutor(
            max_workers=1,
            thread_name_prefix="marks",
            initializer=use_device,
            initargs=(device,),
        )

    def submit(self, work: Callable[[], T]) -> Pending[T]:
        done: Future[T] = Future()
        try:
            if not self._begun:
                torch.cuda.synchronize(self._device)
                self._begun = True
            with torch.cuda.stream(self._stream):
                try:
                    if self._lost is not None:
                        raise self._lost
                    done.set_result(work())
                except Exception as error:  # whoever asks for the result hears of it
                    done.set_exception(error)
                event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                event.record(self._stream)
        except RuntimeError as error:  # of the device's: the work's own has been caught
            lost: Future[T] = Future()
            lost.set_exception(_lost(error))
            return lost
        return _Recorded(done, event)

    def submit_prepared(self, prepare: Callable[[], P], work: Callable[[P], T]) -> Pending[T]:
        return self.submit(lambda: work(prepare()))

    def mark(self, then: Callable[[], None]) -> None:
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        submit(self._marks, _after, event, then).add_done_callback(self._marked)

    def _marked(self, mark: "Future[None]") -> None:
        """Fail the work that comes next, and so the engine, if a mark was not heard: whoever waits
        for it would wait for ever."""
        if not mark.cancelled() and (error := mark.exception()) is not None:
            self._lost = InvariantError(
                f"what had to follow the device's work has failed: {type(error).__name__}: {error}"
            )

    def close(self) -> None:
        with contextlib.suppress(torch.AcceleratorError):  # a lost device has nothing to finish
            self._stream.synchronize()
        self._marks.shutdown(wait=True)


def _after(event: torch.cuda.Event, then: Callable[[], None]) -> None:
    event.synchronize()
    then()


class _Recorded(Generic[T]):
    """Work that was enqueued on a CUDA stream, all of it or up to where it failed."""

    def __init__(self, done: "Future[T]", event: torch.cuda.Event) -> None:
        self._done = done
        self._event = event

    def result(self, timeout: float | None = None) -> T:
        """Wait for the event. It is asked again and again, because CUDA's own wait has no deadline,
        and a kernel that hangs on a GPU without a display is ended by nobody.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while not self._passed():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the device has not finished within {timeout} s")
            time.sleep(_LOOK_S)
        return self._done.result()

    def _passed(self) -> bool:
        """Return True when the device has passed the event. Raises DeviceLostError."""
        try:
            return bool(self._event.query())  # type: ignore[no-untyped-call]
        except torch.AcceleratorError as error:
            raise _lost(error) from error


def _lost(error: RuntimeError) -> DeviceLostError:
    return DeviceLostError(f"the device takes no more work: {error}")


def forward_stream(device: torch.device, overlap: bool) -> ForwardStream:
    """Return the stream for `device`. Without overlap, on a CPU, work runs in the caller."""
    if device.type == "cuda":
        return CudaStream(device)
    return ThreadStream() if overlap else InlineStream()
