"""The Ray actors that run a router or a worker."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection
from contextlib import ExitStack
from typing import Any, Generic, Protocol, TypeVar

import ray

from baton.core.errors import ConfigError
from baton.deploy.certs.credential_files import CredentialFiles
from baton.deploy.cluster import ray_nodes
from baton.deploy.cluster.arrival import Arrival
from baton.deploy.errors import StartError
from baton.deploy.process.interpreter import switch_often
from baton.deploy.process.malloc_tuning import keep_freed_memory, keep_what_is_loaded
from baton.worker.config import WorkerConfig


class Served(Protocol):
    """A router or a worker as its room defines it. Its methods block."""

    def __init__(self, config: Any) -> None: ...

    def start(self) -> Any:
        """Start serving and return the `Started`."""
        ...

    def stop(self, grace_s: float) -> None: ...


class RetiringServed(Served, Protocol):
    def retire(self, ranks: Collection[int]) -> None:
        """Forget decode ranks that will not be restarted."""
        ...


class WorkerServed(Served, Protocol):
    def drain(self, grace_s: float) -> None:
        """Refuse new requests, and let those under way finish for `grace_s`."""
        ...

    def undrain(self) -> None:
        """Take requests again."""
        ...

    def progress(self) -> tuple[str, float]:
        """Return the phase of the start and the fraction done, 0 to 1."""
        ...


S = TypeVar("S", bound=Served)


class Host(ABC, Generic[S]):
    """A Ray actor that starts the object it holds once in each life of its process.

    When Ray restarts a process it only calls `__init__` again, with the first arguments. No one
    calls `start` then, so the actor starts itself.
    """

    def __init__(self) -> None:
        self._served: S | None = None  # once it starts
        self._started: asyncio.Task[Any] | None = None
        if ray.get_runtime_context().was_current_actor_reconstructed:
            self._begin()

    async def start(self) -> Any:
        """Return the `Started` of this life. The first call starts; later calls wait for the same
        start.
        """
        return await asyncio.shield(self._begin())

    async def stop(self, grace_s: float) -> None:
        if self._served is not None:
            await asyncio.to_thread(self._served.stop, grace_s)

    def _begin(self) -> "asyncio.Task[Any]":
        if self._started is None:
            starting = asyncio.to_thread(self._start)
            self._started = asyncio.get_running_loop().create_task(starting)
        return self._started

    def _start(self) -> Any:
        switch_often()
        self._served = self._make()
        started = self._served.start()
        keep_what_is_loaded()
        return started

    @abstractmethod
    def _make(self) -> S:
        """Make the router or worker of this life."""


class RouterHost(Host[RetiringServed]):
    """The Ray actor of a router."""

    def __init__(self, kind: type[RetiringServed], config: object) -> None:
        self._kind = kind
        self._config = config
        super().__init__()

    async def retire(self, ranks: Collection[int]) -> None:
        if self._served is not None:
            self._served.retire(ranks)

    def _make(self) -> RetiringServed:
        return self._kind(self._config)


class WorkerHost(Host[WorkerServed]):
    """The Ray actor of a worker, which completes its config on the node where it starts."""

    def __init__(self, kind: type[WorkerServed], config: WorkerConfig, arrival: Arrival) -> None:
        self._kind = kind
        self._config = config
        self._arrival = arrival
        self._held = ExitStack()  # until the worker has stopped, or its process has ended
        super().__init__()

    async def progress(self) -> tuple[str, float]:
        return ("process", 0.0) if self._served is None else self._served.progress()

    async def stop(self, grace_s: float) -> None:
        await super().stop(grace_s)
        await asyncio.to_thread(self._held.close)

    async def drain(self, grace_s: float) -> None:
        if self._served is not None:
            await asyncio.to_thread(self._served.drain, grace_s)

    async def undrain(self) -> None:
        if self._served is not None:
            await asyncio.to_thread(self._served.undrain)

    async def renew(self, files: CredentialFiles) -> None:
        """Replace the worker's certificate on this node; it reads the files by itself."""
        if self._config.credentials is not None and self._served is not None:
            await asyncio.to_thread(files.write, self._config.credentials)

    def _start(self) -> Any:
        keep_freed_memory()
        try:
            return super()._start()
        except ConfigError as err:  # of this node: its memory, its devices, its files
            raise StartError(f"on node {ray_nodes.this_address()}: {err}") from err

    def _make(self) -> WorkerServed:
        self._config = self._arrival.complete(self._config, self._held)
        return self._kind(self._config)
