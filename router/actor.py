"""The router as a plain class with blocking methods; `deploy` makes a Ray actor of it."""

import asyncio
import threading
from collections.abc import Collection

import uvloop

from baton.core import logs
from baton.core.supervised import ProcessSupervisor, call_on, child_thread
from baton.router.config import RouterConfig
from baton.router.server import RouterServer, RouterStarted, router_credentials

START_TIMEOUT_S = 60.0
STOP_MARGIN_S = 10.0


class RouterActor:
    """A `RouterServer` with its event loop on a thread of its own."""

    def __init__(self, config: RouterConfig, owner: ProcessSupervisor) -> None:
        """owner: of the process, which ends when it has lost what it cannot do without."""
        self._config = config
        self._owner = owner
        self._server = RouterServer(config, owner)
        self._loop = uvloop.new_event_loop()
        self._thread: threading.Thread | None = None  # once started

    def start(self) -> RouterStarted:
        """Start the server; return when it listens.

        Raises ConfigError or `TextError`. The actor cannot be used again after either.
        """
        name = router_credentials(self._config).identity.name
        logs.set_up(self._config.telemetry.log_format, worker=name, role="router")
        self._thread = child_thread(self._run, "router", self._owner.loop_failed)
        return call_on(self._loop, self._server.start(), START_TIMEOUT_S)

    def retire(self, ranks: Collection[int]) -> None:
        """Record that these decode ranks have left the cluster and are not started again."""
        self._loop.call_soon_threadsafe(self._server.retire, ranks)

    def leave(self) -> None:
        """Leave new HTTP connections to the next life of this router."""
        call_on(self._loop, self._server.leave(), STOP_MARGIN_S)

    def stop(self, grace_s: float = 5.0) -> None:
        """Give running requests `grace_s` to end, then end the server. Idempotent."""
        if self._thread is None or not self._thread.is_alive():
            return
        try:
            call_on(self._loop, self._server.stop(grace_s), grace_s + STOP_MARGIN_S)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(STOP_MARGIN_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()
