"""The Ray actor round a router or a worker."""

import asyncio
from collections.abc import Collection
from typing import Any, Protocol

import ray

from baton.deploy.interpreter import switch_often
from baton.deploy.resident import keep_freed_memory, keep_what_is_loaded


class Served(Protocol):
    """A router or a worker, as its room makes it. Its methods block."""

    def __init__(self, config: Any) -> None: ...

    def start(self) -> Any:
        """Its `Started`, once it serves."""
        ...

    def stop(self, grace_s: float) -> None: ...


class Host:
    """Starts what it holds once in each life of its process.

    Ray makes a process that died again by calling `__init__` alone, with what the first one got;
    nobody asks that one to start, so it starts itself.
    """

    def __init__(self, kind: type[Served], config: object) -> None:
        self._served = kind(config)
        self._started: asyncio.Task[Any] | None = None
        if ray.get_runtime_context().was_current_actor_reconstructed:
            self._begin()

    async def start(self) -> Any:
        """The `Started` of this life; the first call starts, later ones wait for the same."""
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
        """Decode ranks that are not started again."""
        ...


class RouterHost(Host):
    _served: RetiringServed

    async def retire(self, ranks: Collection[int]) -> None:
        self._served.retire(ranks)


class ReportingServed(Served, Protocol):
    def progress(self) -> tuple[str, float]:
        """The phase of the start, and how far it is: 0 to 1."""
        ...


class WorkerHost(Host):
    _served: ReportingServed

    def _start(self) -> Any:
        keep_freed_memory()
        return super()._start()

    async def progress(self) -> tuple[str, float]:
        return self._served.progress()
