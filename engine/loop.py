"""A thread that owns an engine."""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from baton.core.errors import DeviceLostError, InvariantError, StoppedError
from baton.core.supervised import child_thread
from baton.engine.engine import Engine
from baton.engine.layout.device import device_of, use_device
from baton.engine.request.events import Event

T = TypeVar("T")

_LOOK_S = 0.25  # between two looks at whether all ranks of an idle engine live


class EngineLoop:
    """Steps the engine while it has work, sleeps while it has none, and runs what it is asked to
    between two steps. `on_events`, `on_failure` and `on_step` (told the seconds that each step
    took) are called on its thread.

    A step that raises ends the requests of that step, with ERROR and the reason, and the loop goes
    on. An InvariantError, a lost device, or an error outside a step, ends the loop: `on_failure` is
    told, and other workers can take over the requests. Memory of the device that does not suffice
    for a step is that step's error: torch.OutOfMemoryError is no AcceleratorError.
    """

    def __init__(
        self,
        engine: Engine,
        on_events: Callable[[list[Event]], None],
        on_failure: Callable[[Exception], None],
        on_step: Callable[[float], None] | None = None,
    ) -> None:
        self._engine = engine
        self._on_events = on_events
        self._on_failure = on_failure
        self._on_step = on_step
        self._wake = threading.Condition()
        self._calls: deque[_Call[Any]] = deque()
        self._ending = False
        self._thread: threading.Thread | None = None  # once started
        if engine.tier is not None:
            engine.tier.on_done(self._collect)

    def start(self) -> None:
        self._thread = child_thread(self._run, "engine", self._failed)

    def call(self, fn: Callable[[Engine], T]) -> "Future[T]":
        """Run `fn` on the engine, between two steps. StoppedError when the loop has ended."""
        call = _Call(fn, Future())
        with self._wake:
            if self._ending:
                call.refuse()
            else:
                self._calls.append(call)
                self._wake.notify()
        return call.future

    def stop(self, timeout: float) -> None:
        """End after the current step. Raises TimeoutError when that takes over `timeout` s."""
        self._end()
        if self._thread is not None:
            self._thread.join(timeout)
        if self._thread is not None and self._thread.is_alive():
            raise TimeoutError(f"the engine's step did not end within {timeout} s")
        self._refuse_calls()

    def _collect(self) -> None:
        """Let the engine's thread take over what its tier has copied."""
        self.call(lambda engine: engine.tier.collect() if engine.tier is not None else None)

    def _run(self) -> None:
        use_device(device_of(self._engine.config.device))
        while self._wait():
            self._run_calls()
            self._step()
        self._refuse_calls()

    def _failed(self, error: Exception) -> None:
        """End the loop, on its thread."""
        self._end()
        try:
            self._on_failure(error)
        finally:
            self._refuse_calls()

    def _wait(self) -> bool:
        """Sleep until there is something to do; false when it is to end."""
        with self._wake:
            while not (self._ending or self._calls or self._engine.has_work):
                followers = self._engine.followers
                self._wake.wait(None if followers is None else _LOOK_S)
                if followers is not None and followers.lost is not None:
                    raise followers.lost
            return not self._ending

    def _run_calls(self) -> None:
        """Run the calls that wait. Raises InvariantError; the calls behind it are left to be
        refused.
        """
        calls = deque(self._take_calls())
        try:
            while calls:
                calls.popleft().run(self._engine)
        finally:
            with self._wake:
                self._calls.extendleft(reversed(calls))

    def _step(self) -> None:
        if not self._engine.has_work:
            return
        self._report(self._engine.plan_step())
        began = time.monotonic()
        try:
            events = self._engine.run_step()
        except InvariantError:
            raise
        except torch.AcceleratorError as error:
            raise DeviceLostError(f"the device has failed in a step: {error}") from error
        except Exception as error:  # a model or a kernel may raise anything
            events = self._engine.fail_step(error)
        if self._on_step is not None:
            self._on_step(time.monotonic() - began)
        self._report(events)

    def _report(self, events: list[Event]) -> None:
        if events:
            self._on_events(events)

    def _end(self) -> None:
        with self._wake:
            self._ending = True
            self._wake.notify()

    def _take_calls(self) -> "list[_Call[Any]]":
        with self._wake:
            calls = list(self._calls)
            self._calls.clear()
        return calls

    def _refuse_calls(self) -> None:
        for call in self._take_calls():
            call.refuse()


@dataclass(frozen=True)
class _Call(Generic[T]):
    fn: Callable[[Engine], T]
    future: "Future[T]"

    def run(self, engine: Engine) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self.fn(engine))
        except Exception as error:  # whatever it is, it belongs to the caller
            self.future.set_exception(error)
            if isinstance(error, InvariantError):
                raise  # the engine can no longer be trusted

    def refuse(self) -> None:
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(StoppedError("the engine's loop has ended"))
