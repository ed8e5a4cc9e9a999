"""The start of the HTTP and the gRPC server of clients."""

from collections.abc import Callable, Sequence
from pathlib import Path

from starlette.routing import BaseRoute

from baton.api.access.browser_guard import BrowserPolicy
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
from baton.api.server.grpc_server import GrpcServer
from baton.api.server.http_server import HttpServer
from baton.api.server.server_options import ClientServerConfig
from baton.api.sglang.routes import sglang_routes
from baton.api.text_service import TextService
from baton.api.thinking_budget import BudgetedBackend
from baton.core.supervised import ProcessSupervisor
from baton.rpc.client_tls import ClientTls
from baton.rpc.tracing import Tracing
from baton.text.chat_template import ChatTemplate
from baton.text.model_folder import served_names
from baton.text.tokenizer import Tokenizer

CLOSE_GRACE_S = 0.25
"""The time that errors may take to reach clients after the last computation."""


class ClientServers:
    """The maker of both servers, which share the model's texts, the rights and limits of callers,
    and one backend. The caller starts and stops them.
    """

    def __init__(
        self,
        config: ClientServerConfig,
        folder: Path,
        owner: ProcessSupervisor,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        """folder: the model's, of which its texts are read. Raises ConfigError, TextError."""
        self._config = config
        self._owner = owner
        self._max_body_bytes = max_body_bytes
        self.tls = None if config.client_tls is None else ClientTls(config.client_tls)
        self.tokenizer = Tokenizer.from_folder(folder, config.template)
        template = ChatTemplate.from_folder(folder, config.template)
        model_id, others = served_names(config.served_model_name, folder)
        self.model = read_model_info(
            folder, model_id, self.tokenizer, others, config.sampling_defaults
        )
        # Last: whoever gets no servers has no texts to close.
        self.text = TextService(self.tokenizer, template, closed_objects=config.closed_objects)
        self._keys: KeyGate | None = None
        self._calls: CallLog
        self._guard: ClientGuard
        self._served: Backend

    def serve(
        self,
        backend: Backend,
        keys: KeyGate | None,
        metrics: ClientMetrics,
        tracing: Tracing | None = None,
    ) -> None:
        """Take what computes the answers of both servers. keys: None serves everybody."""
        self._keys = keys
        self._calls = CallLog(self.model.model_id, tracing)
        self._guard = ClientGuard.make(self._config.limits, metrics, self._calls)
        budgeted = BudgetedBackend(backend, self.tokenizer)
        self._served = budgeted if keys is None else CountedBackend(budgeted, keys.accounts)

    def grpc_server(self) -> GrpcServer:
        """Bind the gRPC server. Raises ConfigError."""
        config = self._config
        return GrpcServer(
            InferenceServicer(self._served, self.text, self._keys, self._calls),
            config.host,
            config.grpc_port,
            self._owner,
            max_body_bytes=self._max_body_bytes,
            keys=self._keys,
            tls=self.tls,
            guard=self._guard,
        )

    def http_server(
        self,
        metrics: Callable[[], MetricsPage],
        synthetic: Callable[[], float],
        more_routes: Sequence[BaseRoute] = (),
        socket: int | None = None,
    ) -> HttpServer:
        """Bind the HTTP server. Raises ConfigError.

        metrics, synthetic: see `make_app`. more_routes: of this kind of server alone. socket: the
        descriptor of one that is bound already.
        """
        config = self._config
        native = sglang_routes(
            self._served,
            self.text,
            max_body_bytes=self._max_body_bytes,
            unknown_fields=config.unknown_fields,
            incremental=config.incremental_streaming_output,
            ping_s=config.ping_s,
        )
        app = make_app(
            self._served,
            self.text,
            metrics,
            max_body_bytes=self._max_body_bytes,
            unknown_fields=config.unknown_fields,
            more_routes=[*native, *more_routes],
            browsers=BrowserPolicy.of_server(
                config.host,
                config.allowed_hosts,
                config.cors_origins,
                keys=self._keys is not None,
            ),
            keys=self._keys,
            calls=self._calls,
            metrics_of_clients=self._guard.metrics,
            ping_s=config.ping_s,
            synthetic=synthetic,
        )
        return HttpServer(
            app, config.host, config.http_port, self._owner, self.tls, self._guard, socket
        )
