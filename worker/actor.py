"""A worker as a plain class with blocking methods; `deploy` makes a Ray actor of it."""

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from typing import Any

import uvloop

from baton.core import logs
from baton.core.errors import ConfigError
from baton.core.supervised import ProcessSupervisor, call_on, child_thread
from baton.engine.engine import Engine
from baton.worker.config import WorkerConfig
from baton.worker.runtime import MakeRole, WorkerRuntime, WorkerStarted

START_TIMEOUT_S = 60.0
STOP_MARGIN_S = 90.0


class WorkerActor:
    """A worker whose asyncio loop and engine loop run on a thread each."""

    def __init__(self, config: WorkerConfig, make_role: MakeRole, owner: ProcessSupervisor) -> None:
        """owner: of the process, which ends when it has lost what it cannot do without."""
        self._config = config
        self._make_role = make_role
        self._progress = ("process", 0.0)
        self._runtime: WorkerRuntime | None = None
        self._loop = uvloop.new_event_loop()
        self._thread: threading.Thread | None = None  # once started
        self._owner = owner

    def start(self) -> WorkerStarted:
        """Start the worker and return when it serves. Raises ConfigError; then the actor cannot be
        used again.
        """
        config = self._config
        logs.set_up(config.telemetry.log_format, worker=config.worker_id, role=config.role.value)
        engine = Engine.load(self._config.engine, self._tell)
        self._tell("serving", 1.0)
        self._thread = child_thread(self._run, "worker", self._owner.loop_failed)
        self._runtime = WorkerRuntime(self._config, engine, self._make_role, self._owner)
        return call_on(self._loop, self._runtime.start(), START_TIMEOUT_S)

    def progress(self) -> tuple[str, float]:
        """Return the phase of the start and its progress, 0 to 1. Callable from any thread."""
        return self._progress

    def stop(self, grace_s: float = 5.0) -> None:
        """Let requests finish for `grace_s`, then end both threads. Idempotent."""
        if self._runtime is None or self._thread is None or not self._thread.is_alive():
            return
        try:
            call_on(self._loop, self._runtime.stop(grace_s), grace_s + STOP_MARGIN_S)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(STOP_MARGIN_S)

    def meet_routers(self, addresses: Mapping[str, str]) -> None:
        """Register with the routers at these addresses, by their names, wherever they were."""
        self._loop.call_soon_threadsafe(self._running.meet_routers, addresses)

    def drain(self, grace_s: float) -> None:
        """Refuse new requests, and let those under way finish for `grace_s`."""
        self._call(self._running.drain(grace_s), grace_s)

    def undrain(self) -> None:
        """Take requests again."""
        self._call(self._running.undrain(), 0.0)

    @property
    def _running(self) -> WorkerRuntime:
        """Return the runtime. Raises ConfigError before `start`."""
        if self._runtime is None:
            raise ConfigError(f"{self._config.worker_id} has not started yet")
        return self._runtime

    def _call(self, work: Coroutine[Any, Any, None], grace_s: float) -> None:
        call_on(self._loop, work, grace_s + STOP_MARGIN_S)

    def _tell(self, phase: str, fraction: float) -> None:
        self._progress = (phase, fraction)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()
