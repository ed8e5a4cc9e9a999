"""A worker without Ray that answers HTTP and gRPC clients by itself."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from grpc_health.v1.health_pb2 import HealthCheckResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from baton.api.access.client_limits import MAX_BODY_BYTES
from baton.api.access.client_metrics import ClientMetrics
from baton.api.access.key_gate import KeyGate
from baton.api.backend import Backend
from baton.api.call_log import CallLog
from baton.api.counted_backend import CountedBackend
from baton.api.grpc.inference import InferenceServicer
from baton.api.http import MetricsPage, make_app
from baton.api.model_info import read_model_info
from baton.api.server.client_guard import ClientGuard
from baton.api.server.grpc_server import INFERENCE, GrpcServer
from baton.api.server.http_server import HttpServer
from baton.api.sglang.routes import sglang_routes
from baton.api.text_service import TextService
from baton.api.thinking_budget import BudgetedBackend
from baton.core.address import join_host_port
from baton.core.errors import StoppedError
from baton.core.role import Role
from baton.core.supervised import ProcessSupervisor
from baton.decode.service import DecodeService
from baton.engine.engine import Engine
from baton.prefill.service import PrefillService
from baton.rpc.client_tls import ClientTls
from baton.standalone.backend import StandaloneBackend
from baton.standalone.config import StandaloneConfig
from baton.standalone.role import StandaloneRole
from baton.text.chat_template import ChatTemplate
from baton.text.model_folder import served_names
from baton.text.tokenizer import Tokenizer
from baton.worker.config import WorkerConfig
from baton.worker.context import RoleService, WorkerContext
from baton.worker.runtime import MakeRole, WorkerRuntime

CLOSE_GRACE_S = 0.25
"""The time that errors may take to reach clients after the last computation."""

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
        tls = None if clients.client_tls is None else ClientTls(clients.client_tls)
        folder = config.engine.model
        tokenizer = Tokenizer.from_folder(folder, clients.template)
        template = ChatTemplate.from_folder(folder, clients.template)
        text = TextService(tokenizer, template, closed_objects=clients.closed_objects)
        opening.callback(text.close)
        text.start()
        model_id, others = served_names(clients.served_model_name, folder)
        model = read_model_info(folder, model_id, tokenizer, others, clients.sampling_defaults)

        def make_role(context: WorkerContext) -> RoleService:
            self._context = context
            self.backend = StandaloneBackend(
                context, model, clients.cache_scope, self._share_of, clients.stream_interval
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
            calls = CallLog(model_id)
            guard = ClientGuard.make(clients.limits, metrics, calls)
            served: Backend = BudgetedBackend(self.backend, tokenizer)
            if clients.api_keys is not None:
                self._keys = KeyGate.open(clients.api_keys, (), clients.limits, metrics)
                served = CountedBackend(served, self._keys.accounts)
            keys = self._keys
            http = self._http(served, text, keys, calls, tls, guard)
            undo.push_async_callback(http.stop, 0.0)
            grpc_server = GrpcServer(
                InferenceServicer(served, text, keys, calls),
                clients.host,
                clients.grpc_port,
                owner,
                max_body_bytes=MAX_BODY_BYTES,
                keys=keys,
                tls=tls,
                guard=guard,
            )
            await http.start()
            await grpc_server.start()
            undo.pop_all()
        if tls is not None:
            self._context.metrics.certificate("clients", tls.seconds_left)
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

    def _http(
        self,
        served: Backend,
        text: TextService,
        keys: KeyGate | None,
        calls: CallLog,
        tls: ClientTls | None,
        guard: ClientGuard,
    ) -> HttpServer:
        clients = self._clients
        app = make_app(
            served,
            text,
            self._metrics,
            unknown_fields=clients.unknown_fields,
            more_routes=sglang_routes(
                served,
                text,
                unknown_fields=clients.unknown_fields,
                incremental=clients.incremental_streaming_output,
                ping_s=clients.ping_s,
            ),
            browsers=clients.browsers,
            keys=keys,
            calls=calls,
            metrics_of_clients=guard.metrics,
            ping_s=clients.ping_s,
            synthetic=lambda: self._context.config.engine.speculative_synthetic_acceptance or 0.0,
        )
        return HttpServer(app, clients.host, clients.http_port, self._owner, tls, guard)

    def _metrics(self) -> MetricsPage:
        """Return the page for clients. The one that routers show to theirs names no keys."""
        pages = map(generate_latest, (self._context.metrics.registry, self._of_keys))
        return MetricsPage(b"".join(pages), CONTENT_TYPE_LATEST)


async def _show_health(server: GrpcServer, status: HealthCheckResponse.ServingStatus) -> None:
    for name in ("", INFERENCE):
        server.health.set(name, status)
