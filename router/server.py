"""The router's servers: gRPC and HTTP on one event loop."""

import asyncio
import contextlib
import logging
import os
import secrets
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from prometheus_client import CONTENT_TYPE_LATEST

from baton.api.access.client_metrics import ClientMetrics
from baton.api.access.key_gate import KeyGate
from baton.api.access.keys import Key, KeyScope
from baton.api.answer_queue import StreamPace
from baton.api.client_servers import CLOSE_GRACE_S, ClientServers
from baton.api.http import MetricsPage
from baton.api.server.grpc_server import INFERENCE
from baton.api.server.http_server import HttpServer
from baton.core.address import join_host_port
from baton.core.errors import ConfigError
from baton.core.supervised import OnFailure, ProcessSupervisor, spawn
from baton.router.backend import RouterBackend
from baton.router.cluster_figures import ClusterFigures
from baton.router.cluster_view.registry import RegistryServicer
from baton.router.cluster_view.worker_pages import WorkerPages
from baton.router.cluster_view.worker_table import WorkerTable
from baton.router.config import RouterConfig
from baton.router.control_route import control_routes
from baton.router.dump.request_dump import RequestDump
from baton.router.health import show_health, watch_health
from baton.router.internal_server import InternalServer
from baton.router.metrics import RouterMetrics
from baton.router.profiles import profile_routes
from baton.router.routes import explain_routes, router_routes
from baton.router.sessions.rank_session import SessionOptions
from baton.rpc.credentials import Credentials
from baton.rpc.identity import ProcessRole
from baton.rpc.metric_aliases.alias_collector import AliasCollector
from baton.rpc.trace_endpoint import open_tracing

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RouterStarted:
    """The addresses on which a router listens, each `host:port`, and its process."""

    http_address: str
    grpc_address: str
    internal_address: str  # where workers register
    pid: int


class RouterServer:
    """The router's servers and tasks. `start` and `stop` are called once each, on one loop."""

    def __init__(
        self,
        config: RouterConfig,
        owner: ProcessSupervisor,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """owner: of all that runs beside this in the process."""
        self._config = config
        self._clock = clock
        self._open = contextlib.AsyncExitStack()
        self._owner = owner
        self._backend: RouterBackend | None = None
        self._http: HttpServer | None = None

    async def start(self) -> RouterStarted:
        """Serve requests. Raises ConfigError or `TextError` and leaves nothing open."""
        async with contextlib.AsyncExitStack() as opening:
            started = await self._start(opening)
            self._open = opening.pop_all()
        log.info(
            "serving HTTP on %s, gRPC on %s, workers on %s",
            started.http_address,
            started.grpc_address,
            started.internal_address,
        )
        return started

    async def leave(self) -> None:
        """Leave new HTTP connections to the router that takes over the listening socket."""
        if self._http is not None:
            await self._http.leave()

    async def stop(self, grace_s: float = 5.0) -> None:
        """Reject new requests, give running ones `grace_s` to end, then close the servers."""
        if self._backend is not None:
            await self._backend.drain(grace_s)
        await self._open.aclose()

    def retire(self, ranks: Collection[int]) -> None:
        """Forward to `RouterBackend.retire`. Does nothing before `start`."""
        if self._backend is not None:
            self._backend.retire(ranks)

    async def _start(self, opening: contextlib.AsyncExitStack) -> RouterStarted:
        config, owner = self._config, self._owner
        owner.use_running_loop()
        clients = ClientServers(config, config.model, owner, config.max_body_bytes)
        opening.callback(clients.text.close)
        clients.text.start()
        credentials = router_credentials(config)
        router_id = f"{credentials.identity.name}/{secrets.token_hex(4)}"
        table = WorkerTable(config.lease_s, self._clock, clients.model.max_model_len)
        metrics = RouterMetrics()
        metrics.certificate("internal", credentials.seconds_left)
        client_metrics = ClientMetrics("router", metrics.registry)
        keys = _key_gate(config, client_metrics)
        if clients.tls is not None:
            metrics.certificate("clients", clients.tls.seconds_left)
        dump = self._request_dump(opening)
        endpoint = config.telemetry.otlp_traces_endpoint
        tracing = open_tracing(endpoint, **{"service.instance.id": router_id})
        if tracing is not None:
            opening.push_async_callback(asyncio.to_thread, tracing.close)
        backend = RouterBackend(
            config,
            clients.model,
            table,
            SessionOptions(
                router_id,
                config.lease_s,
                self._clock,
                credentials,
                pace=StreamPace(config.stream_interval),
            ),
            metrics,
            _equal if keys is None else keys.keyring.share_of,
            owner,
            dump,
            tracing,
        )
        figures = ClusterFigures(table, metrics.queue.waiting, metrics.served)
        aliases = config.telemetry.metric_aliases
        AliasCollector(aliases, config.model_id, figures, metrics.registry)
        clients.serve(backend, keys, client_metrics, tracing)
        opening.push_async_callback(owner.close)
        registry = RegistryServicer(
            table,
            backend.states,
            router_id,
            config.lease_ms,
            backend.demands.of,
            backend.demands.share_changed,
        )
        grpc_server = clients.grpc_server()
        opening.push_async_callback(grpc_server.stop, CLOSE_GRACE_S)
        await grpc_server.start()
        internal = InternalServer(config, credentials, owner)
        opening.push_async_callback(internal.stop)
        internal_address = await internal.start(registry, grpc_server.health)
        pages = WorkerPages(table, credentials, owner)
        opening.push_async_callback(pages.close)
        http = self._http = clients.http_server(
            lambda: MetricsPage(metrics.page(), CONTENT_TYPE_LATEST),
            lambda: table.synthetic_acceptance,
            [
                *router_routes(table, router_id, pages.read),
                *profile_routes(table, credentials),
                *explain_routes(backend.explanations),
                *control_routes(config.control, keys=keys is not None),
            ],
            config.http_socket,
        )
        opening.push_async_callback(http.stop, CLOSE_GRACE_S)
        await http.start()
        # END: no lease would expire any more, and a change of the table that was broken off
        # half-way leaves it wrong.
        spawn(registry.watch_leases, owner, OnFailure.END, "leases")
        # ANEW: the requests that it would move go on where they are meanwhile.
        spawn(backend.recalls.run, owner, OnFailure.ANEW, "recalls")
        # ANEW: it begins with the health of that moment.
        health = grpc_server.health
        spawn(
            lambda: watch_health(health, backend, INFERENCE), owner, OnFailure.ANEW, "gRPC health"
        )
        owner.when_ending(backend.end)
        owner.when_ending(lambda _: show_health(health, False, INFERENCE))
        # The last to open is the first to close: requests that remain fail while both servers can
        # still say so.
        opening.push_async_callback(backend.stop)
        self._backend = backend
        return RouterStarted(
            join_host_port(config.host, http.port),
            join_host_port(config.host, grpc_server.port),
            internal_address,
            os.getpid(),
        )

    def _request_dump(self, opening: contextlib.AsyncExitStack) -> RequestDump | None:
        """Return the dump that the config asks for, or None. Raises ConfigError."""
        config = self._config
        if config.dump.folder is None:
            return None
        dump = RequestDump.open(config.dump, config.model_id, self._clock)
        opening.push_async_callback(asyncio.to_thread, dump.close)
        return dump


def _equal(_: str | None) -> float:
    return 1.0


def router_credentials(config: RouterConfig) -> Credentials:
    """Return the certificate that names a router. Raises ConfigError."""
    if config.credentials is None:
        raise ConfigError("a router needs credentials: workers ask it for its certificate")
    credentials = Credentials(config.credentials)
    if credentials.identity.role is not ProcessRole.ROUTER:
        raise ConfigError(
            f"{config.credentials} has the certificate of {credentials.identity.role} "
            f"{credentials.identity.name!r}; a router needs that of a router"
        )
    return credentials


def _key_gate(config: RouterConfig, metrics: ClientMetrics) -> KeyGate | None:
    """Return the API keys, with one for `deploy`; None if everybody may call."""
    if config.api_keys is None:
        return None
    operators = []
    if config.operator_sha256:
        name = "operator of this cluster"
        operators.append(Key(name, config.operator_sha256, frozenset(KeyScope)))
    return KeyGate.open(config.api_keys, operators, config.limits, metrics, config.routers)
