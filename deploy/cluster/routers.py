"""The routers of one cluster: Ray actors that start, drain and end, and how commands ask them."""

import time
from collections.abc import Collection, Iterable
from contextlib import suppress

from baton.deploy.client.router_client import RouterClient
from baton.deploy.client.trust import PinnedCertificate
from baton.deploy.cluster.actors import RouterHandle
from baton.deploy.cluster.fleet import STOP_MARGIN_S
from baton.deploy.cluster.joined_ray import router_demand, router_wishes
from baton.deploy.cluster.room import Wish
from baton.deploy.cluster.wiring import Wiring
from baton.deploy.errors import NotRunning, StartError
from baton.router.actor import RouterActor

_READY_S = 30.0  # until a router has registered all workers that serve
_TOLD_S = 5.0


class Routers:
    """The routers, ordered by number. Ray restarts those that die."""

    def __init__(self, wiring: Wiring) -> None:
        self.pids: dict[str, int] = {}  # on their nodes, by name; set once they have started
        self._wiring = wiring
        self._actors: list[RouterHandle] = []
        tls = wiring.config.router.client_tls
        self.trust = None if tls is None else PinnedCertificate(tls.certificate)

    @property
    def http_urls(self) -> tuple[str, ...]:
        scheme = "http" if self._wiring.config.router.client_tls is None else "https"
        return tuple(f"{scheme}://{address}" for address in self._wiring.http_addresses)

    @property
    def grpc_addresses(self) -> tuple[str, ...]:
        return self._wiring.grpc_addresses

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
        """Return the nodes that the routers need: this process's, where their ports are settled."""
        return router_wishes(self._wiring.config)

    def begin(self) -> list[RouterHandle]:
        """Create an actor for each router, without starting it."""
        self._actors = [
            RouterHandle(name, RouterActor, self._wiring.router(number), router_demand())
            for number, name in enumerate(self._wiring.router_names)
        ]
        return self._actors

    def retire(self, ranks: Collection[int]) -> None:
        """Tell all which ranks leave. A router that does not answer has died and needs no word."""
        for call in [router.retire(ranks) for router in self._actors]:
            call.ready(_TOLD_S)

    def wait_until_ready(self, workers: Iterable[str]) -> None:
        """Wait until every router can place requests on these workers. Raises StartError."""
        until = time.monotonic() + _READY_S
        wanted = set(workers)
        for name, router in zip(self._wiring.router_names, self.clients, strict=True):
            while missing := wanted - _ready(router):
                if time.monotonic() > until:
                    raise StartError(
                        f"{', '.join(sorted(missing))} started, but {name} does not reach them "
                        f"after {_READY_S:g} s"
                    )
                time.sleep(0.05)

    def drain(self, drain_s: float) -> None:
        """Make all refuse new requests, and give running ones `drain_s` seconds."""
        until = time.monotonic() + drain_s + STOP_MARGIN_S
        for call in [router.stop(drain_s) for router in self._actors]:
            call.ready(max(0.0, until - time.monotonic()))

    def end(self) -> None:
        """End the processes now and do not restart them."""
        for router in self._actors:
            router.end()
        self._actors = []


def _ready(router: RouterClient) -> set[str]:
    """Return the ids of the workers on which a router can place requests now."""
    workers = router.server_info()["workers"]
    return {worker["worker_id"] for worker in workers if worker["ready"]}
