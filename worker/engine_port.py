"""Where the asyncio thread and the engine's thread meet: calls go in, events come out."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, TypeVar

from baton.engine.engine import Engine
from baton.engine.errors import StoppedError
from baton.engine.events import ChunkComputed, Event, Finished, PrefillHeld, Scheduled, TokenSampled
from baton.engine.layer_progress import LayersComputed
from baton.engine.loop import EngineLoop
from baton.engine.request import Holding

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True)
class EventBatch:
    """What one planning or one step brought, in order."""

    events: tuple[Event, ...]
    holdings: Mapping[str, Holding]  # of requests in it whose state may be read now
    at_s: float  # when, by `time.monotonic`
    changes_load: bool  # a request began, was held or ended


class EngineBatchHandler(Protocol):
    """Who hears of the engine's events, on the asyncio thread."""

    def on_batch(self, batch: EventBatch) -> None: ...

    def on_engine_failure(self, error: Exception) -> None:
        """The engine's loop has ended: every request here is lost."""
        ...


class EnginePort:
    """Made on the asyncio thread; every method is called there."""

    def __init__(self, engine: Engine, on_step: Callable[[float], None]) -> None:
        """on_step: told a step's seconds, on the engine's thread."""
        self._asyncio = asyncio.get_running_loop()
        self._engine = engine
        self._handler: EngineBatchHandler | None = None
        self._on_load: Callable[[], None] = lambda: None
        self._loop = EngineLoop(engine, self._events, self._failed, on_step)

    def start(self, handler: EngineBatchHandler, on_load: Callable[[], None]) -> None:
        """on_load: called on the asyncio thread when the load may have changed."""
        self._handler = handler
        self._on_load = on_load
        self._loop.start()

    def listen(self, on_layers: Callable[[Sequence[LayersComputed], float], None]) -> None:
        """Before `start`: hear of last chunks of held requests layer by layer, and when it was by
        `time.monotonic`, on the asyncio thread."""

        def heard(computed: Sequence[LayersComputed]) -> None:
            self._asyncio.call_soon_threadsafe(on_layers, computed, time.monotonic())

        self._engine.listen(heard)

    def stop(self, timeout_s: float) -> None:
        """Blocks until the step under way has ended. Raises TimeoutError."""
        self._loop.stop(timeout_s)

    async def call(self, fn: Callable[[Engine], T]) -> T:
        """`fn`'s result. If the caller is cancelled, `fn` runs all the same."""
        return await asyncio.shield(asyncio.wrap_future(self._loop.call(fn)))

    def request(
        self,
        fn: Callable[[Engine], T],
        then: Callable[[T], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Queue `fn` now, behind all that was queued before. `then` hears of its result before
        anyone hears of events that came after it; `failed` of what it raised."""

        def run(engine: Engine) -> None:
            self._asyncio.call_soon_threadsafe(then, fn(engine))
            self._asyncio.call_soon_threadsafe(self._on_load)

        def done(future: "Future[None]") -> None:
            if (error := future.exception()) is not None:
                self._asyncio.call_soon_threadsafe(failed, error)

        self._loop.call(run).add_done_callback(done)

    def post(self, fn: Callable[[Engine], object], what: str) -> None:
        """Queue `fn` and do not wait; if it raises, that is a fault of ours, and is logged."""
        self.request(fn, lambda _: None, lambda error: _log_failure(error, what))

    def _events(self, events: list[Event]) -> None:
        """On the engine's thread: what may be read now is looked up before the next step."""
        rare = [event for event in events if type(event) is not TokenSampled]
        over = {event.request_id for event in rare if isinstance(event, Finished)}
        wanted = {
            e.request_id
            for e in rare
            if isinstance(e, ChunkComputed | PrefillHeld) or (isinstance(e, Scheduled) and e.held)
        }
        holdings = {name: self._engine.holding(name) for name in wanted - over}
        changes_load = any(isinstance(e, Scheduled | PrefillHeld | Finished) for e in rare)
        batch = EventBatch(tuple(events), holdings, time.monotonic(), changes_load)
        self._asyncio.call_soon_threadsafe(self._deliver, batch)

    def _failed(self, error: Exception) -> None:
        self._asyncio.call_soon_threadsafe(self._deliver_failure, error)

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
