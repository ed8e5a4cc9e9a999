"""The routers of one cluster: Ray actors that start, drain and end, and how commands ask them."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayError

from baton.deploy.certs.credential_files import CredentialFiles
from baton.deploy.client.router_client import RouterClient
from baton.deploy.client.trust import PinnedCertificate
from baton.deploy.cluster.actors import ActorHandle, RouterHandle
from baton.deploy.cluster.capacity import Wish
from baton.deploy.cluster.control_relay import start_relay
from baton.deploy.cluster.fleet import STOP_MARGIN_S
from baton.deploy.cluster.joined_ray import router_wishes
from baton.deploy.cluster.newest_config import with_changes
from baton.deploy.cluster.router_arrival import RouterArrival, files_of
from baton.deploy.cluster.router_places import RouterPlace, RouterPlaces
from baton.deploy.cluster.wiring import Wiring
from baton.deploy.errors import NotRunning, StartError
from baton.deploy.messages.start_progress import StartProgress
from baton.router.actor import RouterActor

READY_S = 30.0  # until a router has registered all workers that serve
_TOLD_S = 5.0


class Routers:
    """The routers, ordered by number. Ray restarts those that die."""

    def __init__(self, wiring: Wiring, *, detached: bool = False) -> None:
        """detached: the routers do not end with this process."""
        self.pids: dict[str, int] = {}  # on their nodes, by name; set once they have started
        self._wiring = wiring
        self._detached = detached
        self._actors: list[RouterHandle] = []
        config = wiring.config
        self._places = RouterPlaces(config.name) if config.routers_move else None
        self._relay: Any = None  # Ray's handle of the actor; None: there is none
        self._known: dict[str, RouterPlace] = {}  # at the last look
        tls = wiring.config.router.client_tls
        self.trust = None if tls is None else PinnedCertificate(tls.certificate)

    @property
    def names(self) -> tuple[str, ...]:
        return self._wiring.router_names

    @property
    def actors(self) -> tuple[RouterHandle, ...]:
        return tuple(self._actors)

    @property
    def http_urls(self) -> tuple[str, ...]:
        """Return each router's URL now; empty for one that has not started yet."""
        scheme = "http" if self._wiring.config.router.client_tls is None else "https"
        addresses = self._wiring.http_addresses
        if self._places is not None:
            addresses = tuple(place.http if place else "" for place in self._look(self._places))
        return tuple(f"{scheme}://{address}" if address else "" for address in addresses)

    @property
    def grpc_addresses(self) -> tuple[str, ...]:
        if self._places is None:
            return self._wiring.grpc_addresses
        return tuple(place.grpc if place else "" for place in self._look(self._places))

    @property
    def clients(self) -> tuple[RouterClient, ...]:
        """Return a client of each router, with the operator's key."""
        key = self._wiring.operator_key
        return tuple(RouterClient(url, key, self.trust) for url in self.http_urls)

    def any_client(self) -> RouterClient:
        """Return a client of the first router that answers; of the very first if none does."""
        clients = self.clients
        for each in clients if len(clients) > 1 else ():
            with suppress(NotRunning):
                each.server_info()
                return each
        return clients[0]

    @property
    def wishes(self) -> list[Wish]:
        """Return the nodes that the routers need."""
        return router_wishes(self._wiring.config)

    def begin(self, nodes: Mapping[str, str], *, anew: bool) -> list[RouterHandle]:
        """Create an actor for each router, without starting it.

        A detached actor that exists already is found instead. nodes: those chosen for routers that
        may run on any. anew: no router runs yet.
        """
        if anew and self._places is not None:
            self._places.delete()  # those of an earlier cluster of this name, which was killed
        control = self._wiring.config.router.control
        if self._places is not None and control is not None:
            self._relay = start_relay(control, detached=self._detached)
        self._actors = [
            RouterHandle(
                wish.name,
                RouterActor,
                self._wiring.router(number),
                wish.demand,
                self._arrival(number),
                nodes.get(wish.name, wish.near),
                self._wiring.listener,
                detached=self._detached,
            )
            for number, wish in enumerate(self.wishes)
        ]
        return self._actors

    def adopt(self, wiring: Wiring) -> None:
        """Give the routers, from their next start on, what differs in another wiring."""
        before = self._wiring
        for number, actor in enumerate(self._actors):
            changed = with_changes(actor.config, before.router(number), wiring.router(number))
            actor.reconfigure(changed)
        self._wiring = wiring

    def files(self) -> dict[ActorHandle, Callable[[], CredentialFiles]]:
        """Return how to read the files on this machine that routers on others have copies of."""
        if self._places is None:
            return {}
        return {
            actor: partial(files_of, self._wiring.router(number))
            for number, actor in enumerate(self._actors)
        }

    def retire(self, ranks: Collection[int]) -> None:
        """Tell all which ranks leave. A router that does not answer has died and needs no word."""
        for call in [router.retire(ranks) for router in self._actors]:
            call.ready(_TOLD_S)

    def wait_until_ready(
        self,
        workers: Iterable[str],
        within_s: float = READY_S,
        least: Mapping[str, int] | None = None,
    ) -> None:
        """Wait until every router can place requests on these workers. Raises StartError.

        least: the lowest incarnations that count, by worker id.
        """
        until, wanted = time.monotonic() + within_s, set(workers)
        for number in range(len(self.names)):
            self._wait_for(number, wanted, until, least or {})

    def restart(
        self, workers: Sequence[str], drain_s: float, within_s: float, progress: StartProgress
    ) -> list[str]:
        """Restart all, one after another; return their names.

        Each refuses new requests and has `drain_s` seconds for running ones. The next one follows
        when it reaches all `workers` again. Clients of the only one wait for its next life.
        Raises StartError if that takes more than `within_s`.
        """
        for number, actor in enumerate(self._actors):
            progress.update(actor.name, f"draining, for {drain_s:g} s at most", 0.0)
            if self._wiring.listener is not None:
                actor.leave().ready(STOP_MARGIN_S)
            actor.stop(drain_s).ready(drain_s + STOP_MARGIN_S)
            progress.update(actor.name, "starts again", 0.5)
            began = time.monotonic()
            actor.restart()
            self._wait_for(number, set(workers), began + within_s, {})
            self.pids[actor.name] = actor.start().result(within_s).pid
            progress.done(actor.name, f"serves again after {time.monotonic() - began:.1f} s")
        return [actor.name for actor in self._actors]

    def drain(self, drain_s: float) -> None:
        """Make all refuse new requests, and give running ones `drain_s` seconds."""
        until = time.monotonic() + drain_s + STOP_MARGIN_S
        for call in [router.stop(drain_s) for router in self._actors]:
            call.ready(max(0.0, until - time.monotonic()))

    def end(self) -> None:
        """End the processes now and do not restart them."""
        for router in self._actors:
            router.end()
        if self._relay is not None:
            ray.kill(self._relay, no_restart=True)
            self._relay = None
        if self._actors and self._places is not None:
            with suppress(RayError):  # Ray is gone, and they with it
                self._places.delete()
        self._actors = []

    def _arrival(self, number: int) -> RouterArrival | None:
        if self._places is None:
            return None
        config = self._wiring.router(number)
        return RouterArrival(
            self.names[number], self._wiring.config.name, time.time_ns(), files_of(config)
        )

    def _look(self, places: RouterPlaces) -> list[RouterPlace | None]:
        """Return where each router is; None for one that has not been anywhere yet."""
        with suppress(RayError):  # the control store is away: what was known stays
            self._known = places.read()
        return [self._known.get(name) for name in self.names]

    def _wait_for(
        self, number: int, workers: set[str], until: float, least: Mapping[str, int]
    ) -> None:
        """Wait until one router can place requests on `workers`. Raises StartError."""
        while missing := workers - _ready(self.clients[number], least):
            if time.monotonic() > until:
                name = self.names[number]
                raise StartError(f"{name} does not reach {', '.join(sorted(missing))} in time")
            time.sleep(0.05)


def _ready(router: RouterClient, least: Mapping[str, int]) -> set[str]:
    """Return the ids of the workers on which a router can place requests now; none if it does not
    answer.
    """
    try:
        workers = router.server_info()["workers"]
    except NotRunning:
        return set()
    return {
        worker["worker_id"]
        for worker in workers
        if worker["ready"] and worker["incarnation"] >= least.get(worker["worker_id"], 0)
    }
