"""A worker without Ray that answers HTTP and gRPC clients by itself."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from grpc_health.v1.health_pb2 import HealthCheckResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from baton.api.access.client_metrics import ClientMetrics
from baton.api.access.key_gate import KeyGate
from baton.api.client_servers import CLOSE_GRACE_S, ClientServers
from baton.api.http import MetricsPage
from baton.api.server.grpc_server import INFERENCE, GrpcServer
from baton.core.address import join_host_port
from baton.core.errors import StoppedError
from baton.core.role import Role
from baton.core.supervised import ProcessSupervisor
from baton.decode.service import DecodeService
from baton.engine.engine import Engine
from baton.prefill.service import PrefillService
from baton.standalone.backend import StandaloneBackend
from baton.standalone.config import StandaloneConfig
from baton.standalone.role import StandaloneRole
from baton.worker.config import WorkerConfig
from baton.worker.context import RoleService, WorkerContext
from baton.worker.runtime import MakeRole, WorkerRuntime

_INNER: Mapping[Role, MakeRole] = {Role.PREFILL: PrefillService, Role.DECODE: DecodeService}


@dataclass(frozen=True)
class Addresses:
    """The worker's listening addresses, each host:port."""

    http: str  # of clients
    grpc: str
    peers: str  # of routers and other workers, over gRPC; empty for role `both`


class StandaloneWorker:
    """A worker that serves inside `async with StandaloneWorker(config, engine)`, on the running
    loop.

    With role `both` it stands alone. With `prefill` or `decode` it also has that role for the
    routers in `config`; its own clients' requests are computed by its engine alone.
    """

    def __init__(
        self, config: WorkerConfig, engine: Engine, clients: StandaloneConfig | None = None
    ) -> None:
        """clients: None serves this machine on any free ports."""
        self._config = config
        self._engine = engine
        self._clients = clients or StandaloneConfig()
        self._of_keys = CollectorRegistry()
        self._open = contextlib.AsyncExitStack()
        self._context: WorkerContext
        self._keys: KeyGate | None = None
        self._owner = ProcessSupervisor()
        self.backend: StandaloneBackend
        self.addresses: Addresses

    async def __aenter__(self) -> Self:
        """Start serving.

        Raises ConfigError for a folder without tokenizer, a taken port, or files of API keys or
        certificates that are not valid.
        """
        async with contextlib.AsyncExitStack() as opening:
            await self._start(opening)
            self._open = opening.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._open.aclose()

    async def watch(self) -> None:
        """Wait until the worker has lost what it cannot do without: raises StoppedError."""
        raise StoppedError(f"{await self._owner.ended()}; start it again")

    async def _start(self, opening: contextlib.AsyncExitStack) -> None:
        config, clients = self._config, self._clients
        servers = ClientServers(clients, config.engine.model, self._owner)
        opening.callback(servers.text.close)
        servers.text.start()

        def make_role(context: WorkerContext) -> RoleService:
            self._context = context
            self.backend = StandaloneBackend(
                context, servers.model, clients.cache_scope, self._share_of, clients.stream_interval
            )
            inner = _INNER.get(config.role)
            return StandaloneRole(self.backend, None if inner is None else inner(context))

        owner = self._owner
        runtime = WorkerRuntime(config, self._engine, make_role, owner)
        started = await runtime.start()
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(runtime.stop, 0.0)
            labels = {"worker": config.worker_id, "role": config.role.value}
            metrics = ClientMetrics("worker", self._context.metrics.registry, labels, self._of_keys)
            if clients.api_keys is not None:
                self._keys = KeyGate.open(clients.api_keys, (), clients.limits, metrics)
            servers.serve(self.backend, self._keys, metrics)
            http = servers.http_server(self._metrics, self._synthetic)
            undo.push_async_callback(http.stop, 0.0)
            grpc_server = servers.grpc_server()
            await http.start()
            await grpc_server.start()
            undo.pop_all()
        if servers.tls is not None:
            self._context.metrics.certificate("clients", servers.tls.seconds_left)
        # The engine stops first, so that both servers can still report the requests that this ends.
        opening.push_async_callback(http.stop, CLOSE_GRACE_S)
        opening.push_async_callback(grpc_server.stop, CLOSE_GRACE_S)
        opening.push_async_callback(runtime.stop, clients.drain_s)
        opening.push_async_callback(_show_health, grpc_server, HealthCheckResponse.NOT_SERVING)
        opening.callback(self.backend.leave)
        await _show_health(grpc_server, HealthCheckResponse.SERVING)
        owner.when_ending(lambda _: _show_health(grpc_server, HealthCheckResponse.NOT_SERVING))
        self.addresses = Addresses(
            join_host_port(clients.host, http.port),
            join_host_port(clients.host, grpc_server.port),
            started.address,
        )

    def _share_of(self, owner: str | None) -> float:
        return 1.0 if self._keys is None else self._keys.keyring.share_of(owner)

    def _synthetic(self) -> float:
        return self._context.config.engine.speculative_synthetic_acceptance or 0.0

    def _metrics(self) -> MetricsPage:
        """Return the page for clients. The one that routers show to theirs names no keys."""
        pages = map(generate_latest, (self._context.metrics.registry, self._of_keys))
        return MetricsPage(b"".join(pages), CONTENT_TYPE_LATEST)


async def _show_health(server: GrpcServer, status: HealthCheckResponse.ServingStatus) -> None:
    for name in ("", INFERENCE):
        server.health.set(name, status)
