"""The Ray actors that run a router or a worker."""

import asyncio
from collections.abc import Collection
from typing import Any, Protocol

import ray

from baton.deploy.process.interpreter import switch_often
from baton.deploy.process.malloc_tuning import keep_freed_memory, keep_what_is_loaded


class Served(Protocol):
    """A router or a worker as its room defines it. Its methods block."""

    def __init__(self, config: Any) -> None: ...

    def start(self) -> Any:
        """Start serving and return the `Started`."""
        ...

    def stop(self, grace_s: float) -> None: ...


class Host:
    """A Ray actor that starts the object it holds once in each life of its process.

    When Ray restarts a process it only calls `__init__` again, with the first arguments. No one
    calls `start` then, so the actor starts itself.
    """

    def __init__(self, kind: type[Served], config: object) -> None:
        self._served = kind(config)
        self._started: asyncio.Task[Any] | None = None
        if ray.get_runtime_context().was_current_actor_reconstructed:
            self._begin()

    async def start(self) -> Any:
        """Return the `Started` of this life. The first call starts; later calls wait for the same
        start.
        """
        return await asyncio.shield(self._begin())

    async def stop(self, grace_s: float) -> None:
        await asyncio.to_thread(self._served.stop, grace_s)

    def _begin(self) -> "asyncio.Task[Any]":
        if self._started is None:
            starting = asyncio.to_thread(self._start)
            self._started = asyncio.get_running_loop().create_task(starting)
        return self._started

    def _start(self) -> Any:
        switch_often()
        started = self._served.start()
        keep_what_is_loaded()
        return started


class RetiringServed(Served, Protocol):
    def retire(self, ranks: Collection[int]) -> None:
        """Forget decode ranks that will not be restarted."""
        ...


class RouterHost(Host):
    _served: RetiringServed

    async def retire(self, ranks: Collection[int]) -> None:
        self._served.retire(ranks)


class ReportingServed(Served, Protocol):
    def progress(self) -> tuple[str, float]:
        """Return the phase of the start and the fraction done, 0 to 1."""
        ...


class WorkerHost(Host):
    _served: ReportingServed

    def _start(self) -> Any:
        keep_freed_memory()
        return super()._start()

    async def progress(self) -> tuple[str, float]:
        return self._served.progress()
