"""Connects the asyncio thread and the engine's thread: calls go in, events come out."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import ParamSpec, Protocol, TypeVar

from baton.core.errors import StoppedError
from baton.engine.engine import Engine
from baton.engine.loop import EngineLoop
from baton.engine.request.events import (
    ChunkComputed,
    Event,
    PrefillHeld,
    RequestFinished,
    Scheduled,
    TokenSampled,
)
from baton.engine.request.request import Parked
from baton.engine.step.layer_progress import LayersComputed

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class EventBatch:
    """The events of one planning or one step, in order."""

    events: tuple[Event, ...]
    parked_states: Mapping[str, Parked]  # of requests in it whose state may be read now
    at_s: float  # when, by `time.monotonic`
    changes_load: bool  # a request began, was held or ended


class EngineBatchHandler(Protocol):
    """A receiver of the engine's events, on the asyncio thread."""

    def on_batch(self, batch: EventBatch) -> None: ...

    def on_engine_failure(self, error: Exception) -> None:
        """Handle the end of the engine's loop: every request on it is lost."""
        ...

    def on_lost_event(self, error: Exception) -> None:
        """Handle what a receiver of an event has raised: somebody waits for what it did not do."""
        ...


class EnginePort:
    """The asyncio side of an engine's loop. Every method is called on the asyncio thread."""

    def __init__(self, engine: Engine, on_step: Callable[[float], None]) -> None:
        """on_step: called with each step's seconds, on the engine's thread."""
        self._asyncio = asyncio.get_running_loop()
        self._engine = engine
        self._handler: EngineBatchHandler | None = None
        self._on_load: Callable[[], None] = lambda: None
        self._on_step = on_step
        self._step_watcher: Callable[[], None] | None = None
        self._lock = threading.Lock()
        self._told: list[Callable[[], object]] = []  # calls that the asyncio thread is to make
        self._loop = EngineLoop(engine, self._events, self._failed, self._stepped)

    def start(self, handler: EngineBatchHandler, on_load: Callable[[], None]) -> None:
        """Start the engine's loop. on_load: called on the asyncio thread when the load may have
        changed.
        """
        self._handler = handler
        self._on_load = on_load
        self._loop.start()

    def listen(self, on_layers: Callable[[Sequence[LayersComputed], float], None]) -> None:
        """Report the last chunks of held requests layer by layer. Called before `start`.

        on_layers: called on the asyncio thread with the layers and their time by `time.monotonic`.
        """

        def heard(computed: Sequence[LayersComputed]) -> None:
            self._tell(on_layers, computed, time.monotonic())

        self._engine.listen(heard)

    def watch_steps(self, watcher: Callable[[], None] | None) -> None:
        """Call `watcher` after each step, on the engine's thread; None ends that."""
        self._step_watcher = watcher

    def stop(self, timeout_s: float) -> None:
        """Stop the loop; block until the step under way has ended. Raises TimeoutError."""
        self._loop.stop(timeout_s)

    async def call(self, fn: Callable[[Engine], T]) -> T:
        """Run `fn` on the engine's thread and return its result. `fn` runs even if the caller is
        cancelled.
        """
        return await asyncio.shield(asyncio.wrap_future(self._loop.call(fn)))

    def request(
        self,
        fn: Callable[[Engine], T],
        then: Callable[[T], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Queue `fn` behind everything that was queued before, without waiting.

        then: called with its result, before any event that came after it is delivered. failed:
        called with what `fn` raised.
        """

        def answered(result: T) -> None:
            then(result)
            self._on_load()

        def run(engine: Engine) -> None:
            self._tell(answered, fn(engine))

        def done(future: "Future[None]") -> None:
            if (error := future.exception()) is not None:
                self._tell(failed, error)

        self._loop.call(run).add_done_callback(done)

    def post(self, fn: Callable[[Engine], object], what: str) -> None:
        """Queue `fn` without waiting. What it raises is a fault of ours, and is logged."""
        self.request(fn, lambda _: None, lambda error: _log_failure(error, what))

    def _events(self, events: list[Event]) -> None:
        """Collect, on the engine's thread, what may be read until the next step."""
        rare = [event for event in events if type(event) is not TokenSampled]
        over = {event.request_id for event in rare if isinstance(event, RequestFinished)}
        wanted = {
            e.request_id
            for e in rare
            if isinstance(e, ChunkComputed | PrefillHeld)
            or (isinstance(e, Scheduled) and e.will_park)
        }
        parked_states = {name: self._engine.parked_state(name) for name in wanted - over}
        changes_load = any(isinstance(e, Scheduled | PrefillHeld | RequestFinished) for e in rare)
        batch = EventBatch(tuple(events), parked_states, time.monotonic(), changes_load)
        self._tell(self._deliver, batch)

    def _tell(self, receiver: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call a receiver on the asyncio thread, in the order of the calls.

        All that is told before the loop's next turn wakes it once.
        """
        with self._lock:
            asleep = not self._told
            self._told.append(partial(receiver, *args, **kwargs))
        if asleep:
            self._asyncio.call_soon_threadsafe(self._hear)

    def _hear(self) -> None:
        """Make the calls that wait. The loop would only log what they raise."""
        with self._lock:
            told, self._told = self._told, []
        for call in told:
            try:
                call()
            except Exception as error:  # the loop's last line: nobody above could catch it
                assert self._handler is not None
                self._handler.on_lost_event(error)

    def _stepped(self, seconds: float) -> None:
        self._on_step(seconds)
        watcher = self._step_watcher
        if watcher is not None:
            watcher()

    def _failed(self, error: Exception) -> None:
        self._tell(self._deliver_failure, error)

    def _deliver(self, batch: EventBatch) -> None:
        assert self._handler is not None
        self._handler.on_batch(batch)
        if batch.changes_load:
            self._on_load()

    def _deliver_failure(self, error: Exception) -> None:
        assert self._handler is not None
        self._handler.on_engine_failure(error)


def _log_failure(error: BaseException, what: str) -> None:
    # A loop that has ended refuses everything; its end was reported.
    if not isinstance(error, StoppedError):
        log.error("%s failed: %s: %s", what, type(error).__name__, error)
