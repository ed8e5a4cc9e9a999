"""A worker without Ray that answers HTTP and gRPC clients by itself."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from baton.api.browser_guard import BrowserPolicy
from baton.api.http import MetricsPage, make_app
from baton.api.native import native_routes
from baton.api.text_service import TextService
from baton.core.role import Role
from baton.decode.service import DecodeService
from baton.deploy.local.backend import LocalBackend
from baton.deploy.local.role import LocalRole
from baton.engine.engine import Engine
from baton.prefill.service import PrefillService
from baton.router.http_server import HttpServer
from baton.router.model import read_model_info
from baton.text.chat_template import ChatTemplate
from baton.text.model_folder import model_name
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

    http: str
    grpc: str
    metrics: str


class LocalWorker:
    """A worker that serves inside `async with LocalWorker(config, engine)`, on the running loop.

    With role `both` it stands alone. With `prefill` or `decode` it also has that role for the
    routers in `config`; its own clients' requests are computed by its engine alone.
    """

    def __init__(
        self,
        config: WorkerConfig,
        engine: Engine,
        *,
        http_port: int = 0,
        served_model_name: str | None = None,
        incremental_streaming_output: bool = False,
        drain_s: float = 0.0,
        browsers: BrowserPolicy | None = None,
    ) -> None:
        """http_port: 0 for any free one. drain_s: seconds for running requests at the stop.
        browsers: as in `make_app`.
        """
        self._config = config
        self._engine = engine
        self._http_port = http_port
        self._model_id = served_model_name or model_name(config.engine.model)
        self._incremental = incremental_streaming_output
        self._drain_s = drain_s
        self._browsers = browsers
        self._open = contextlib.AsyncExitStack()
        self._context: WorkerContext
        self.backend: LocalBackend
        self.addresses: Addresses

    async def __aenter__(self) -> Self:
        """Start serving. Raises ConfigError for a folder without tokenizer, or a taken port."""
        async with contextlib.AsyncExitStack() as opening:
            await self._start(opening)
            self._open = opening.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._open.aclose()

    async def _start(self, opening: contextlib.AsyncExitStack) -> None:
        config = self._config
        folder = config.engine.model
        tokenizer = Tokenizer.from_folder(folder)
        text = TextService(tokenizer, ChatTemplate.from_folder(folder))
        opening.callback(text.close)
        model = read_model_info(folder, self._model_id, tokenizer)

        def make_role(context: WorkerContext) -> RoleService:
            self._context = context
            self.backend = LocalBackend(context, model)
            inner = _INNER.get(config.role)
            return LocalRole(self.backend, text, None if inner is None else inner(context))

        runtime = WorkerRuntime(config, self._engine, make_role)
        started = await runtime.start()
        async with contextlib.AsyncExitStack() as guard:
            guard.push_async_callback(runtime.stop, 0.0)
            routes = native_routes(self.backend, text, incremental=self._incremental)
            app = make_app(
                self.backend,
                text,
                self._metrics,
                more_routes=routes,
                browsers=self._browsers,
            )
            http = HttpServer(app, config.host, self._http_port)
            await http.start()
            guard.pop_all()
        # The engine stops first, so that HTTP can still report the requests that this ends.
        opening.push_async_callback(http.stop, CLOSE_GRACE_S)
        opening.push_async_callback(runtime.stop, self._drain_s)
        self.addresses = Addresses(
            f"{config.host}:{http.port}", started.address, started.metrics_address
        )

    def _metrics(self) -> MetricsPage:
        return MetricsPage(generate_latest(self._context.metrics.registry), CONTENT_TYPE_LATEST)
