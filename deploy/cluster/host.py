"""The Ray actors that run a router or a worker."""

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import ray

from baton.core.errors import ConfigError
from baton.core.process_end import ending_owner
from baton.core.supervised import ProcessSupervisor, child, child_thread
from baton.deploy.certs.credential_files import CredentialFiles
from baton.deploy.cluster import ray_nodes
from baton.deploy.cluster.arrival import Arrival
from baton.deploy.cluster.kept_listener import take
from baton.deploy.cluster.life_ends import NO_START, record_end
from baton.deploy.cluster.newest_config import newest_config
from baton.deploy.cluster.router_arrival import RouterArrival
from baton.deploy.cluster.router_places import RouterPlace, RouterPlaces, following
from baton.deploy.errors import StartError
from baton.deploy.process.tuning import keep_freed_memory, keep_what_is_loaded, switch_often
from baton.worker.config import WorkerConfig

_AGAIN_S = 2.0

log = logging.getLogger(__name__)


class Served(Protocol):
    """A router or a worker as its room defines it. Its methods block."""

    def __init__(self, config: Any, owner: ProcessSupervisor) -> None: ...

    def start(self) -> Any:
        """Start serving and return the `Started`."""
        ...

    def stop(self, grace_s: float) -> None: ...


class RoutingServed(Served, Protocol):
    def retire(self, ranks: Collection[int]) -> None:
        """Forget decode ranks that will not be restarted."""
        ...

    def leave(self) -> None:
        """Leave new HTTP connections to the next life."""
        ...


class WorkerServed(Served, Protocol):
    def drain(self, grace_s: float) -> None:
        """Refuse new requests, and let those under way finish for `grace_s`."""
        ...

    def undrain(self) -> None:
        """Take requests again."""
        ...

    def meet_routers(self, addresses: Mapping[str, str]) -> None:
        """Register with the routers at these addresses, by their names."""
        ...

    def progress(self) -> tuple[str, float]:
        """Return the phase of the start and the fraction done, 0 to 1."""
        ...


S = TypeVar("S", bound=Served)


class Host(ABC, Generic[S]):
    """A Ray actor that starts the object it holds once in each life of its process.

    When Ray restarts a process it only calls `__init__` again, with the first arguments. No one
    calls `start` then, so the actor starts itself; if that fails, Ray starts the process again.
    """

    def __init__(self) -> None:
        self._owner = ending_owner(record_end)
        self._served: S | None = None  # once it starts
        self._started: asyncio.Task[Any] | None = None
        self._held = ExitStack()  # files; until the process stops or ends
        self._following = ExitStack()  # the places of routers; until it stops
        if ray.get_runtime_context().was_current_actor_reconstructed:
            self._begin().add_done_callback(_end_if_failed)

    async def start(self) -> Any:
        """Return the `Started` of this life. The first call starts; later calls wait for the same
        start.
        """
        return await asyncio.shield(self._begin())

    async def stop(self, grace_s: float) -> None:
        await asyncio.to_thread(self._following.close)
        if self._served is not None:
            await asyncio.to_thread(self._served.stop, grace_s)
        await asyncio.to_thread(self._held.close)

    def _begin(self) -> "asyncio.Task[Any]":
        if self._started is None:
            starting = asyncio.to_thread(self._start)
            self._started = child(starting)
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


class RouterHost(Host[RoutingServed]):
    """The Ray actor of a router. One that may run on any node completes its config there."""

    def __init__(
        self,
        kind: type[RoutingServed],
        config: Any,
        arrival: RouterArrival | None = None,
        listener: Path | None = None,
    ) -> None:
        """arrival: None for a router that stays on the node of whoever made it. listener: where
        `take` finds the HTTP socket; None: the router makes it.
        """
        self._kind = kind
        self._config = config
        self._arrival = arrival
        self._listener = listener
        super().__init__()

    async def retire(self, ranks: Collection[int]) -> None:
        if self._served is not None:
            self._served.retire(ranks)

    async def renew(self, files: CredentialFiles) -> None:
        """Replace certificates and API keys on this node; the router reads the files by itself."""
        if self._arrival is not None and self._served is not None:
            await asyncio.to_thread(files.write, self._config.credentials)

    def _start(self) -> Any:
        if self._arrival is None:
            return super()._start()
        with _naming_this_node():
            started = super()._start()
        arrival, place = self._arrival, self._arrival.record(started)
        log.info("%s is at %s", arrival.name, place.http)

        def end_if_replaced(places: Mapping[str, RouterPlace]) -> None:
            newest = places.get(arrival.name, place)
            if newest.incarnation > place.incarnation:
                # This process's host was cut off for so long that Ray has started another.
                log.critical("a newer start of %s is at %s", arrival.name, newest.http)
                os._exit(1)

        self._following.enter_context(
            following(RouterPlaces(arrival.cluster), self._owner, end_if_replaced)
        )
        return started

    async def leave(self) -> None:
        if self._served is not None:
            await asyncio.to_thread(self._served.leave)

    def _make(self) -> RoutingServed:
        self._config = newest_config(self._config)
        if self._listener is not None:
            self._config = replace(self._config, http_socket=take(self._listener))
        if self._arrival is not None:
            self._config = self._arrival.complete(self._config, self._held, self._owner)
        return self._kind(self._config, self._owner)


class WorkerHost(Host[WorkerServed]):
    """The Ray actor of a worker, which completes its config on the node where it starts."""

    def __init__(self, kind: type[WorkerServed], config: WorkerConfig, arrival: Arrival) -> None:
        self._kind = kind
        self._config = config
        self._arrival = arrival
        super().__init__()

    async def progress(self) -> tuple[str, float]:
        return ("process", 0.0) if self._served is None else self._served.progress()

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
        with _naming_this_node():
            started = super()._start()
        cluster = self._arrival.routers_of
        if cluster is not None:
            self._following.enter_context(following(RouterPlaces(cluster), self._owner, self._meet))
        return started

    def _meet(self, places: Mapping[str, RouterPlace]) -> None:
        if self._served is not None:
            self._served.meet_routers({name: place.internal for name, place in places.items()})

    def _make(self) -> WorkerServed:
        self._config = self._arrival.complete(newest_config(self._config), self._held)
        return self._kind(self._config, self._owner)


@contextmanager
def _naming_this_node() -> Iterator[None]:
    """Raise StartError that names this node in place of a ConfigError."""
    try:
        yield
    except ConfigError as err:  # of this node: its memory, its devices, its ports, its files
        raise StartError(f"on node {ray_nodes.this_address()}: {err}") from err


def _end_if_failed(start: "asyncio.Task[Any]") -> None:
    """End a process that Ray has started again and that cannot serve, for Ray to try once more."""
    if not start.cancelled() and (error := start.exception()) is not None:
        log.critical("cannot start: %s; trying again in %g s", error, _AGAIN_S)
        reason = f"{NO_START}: {error}"
        child_thread(lambda: record_end(reason), "record of the end", _not_recorded)
        start.get_loop().call_later(_AGAIN_S, os._exit, 1)


def _not_recorded(error: Exception) -> None:
    log.error("why this process ends could not be recorded: %s", error)
