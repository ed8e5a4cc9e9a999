"""A worker without Ray that answers HTTP and gRPC clients by itself."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from baton.api.http import MetricsPage, make_app
from baton.api.native import native_routes
from baton.api.text_service import TextService
from baton.decode.service import DecodeService
from baton.deploy.local_backend import LocalBackend
from baton.deploy.local_role import LocalRole
from baton.engine.engine import Engine
from baton.prefill.service import PrefillService
from baton.router.http_server import HttpServer
from baton.router.model import read_model_info
from baton.text.chat_template import ChatTemplate
from baton.text.model_folder import model_name
from baton.text.tokenizer import Tokenizer
from baton.worker.config import Role, WorkerConfig
from baton.worker.context import RoleService, WorkerContext
from baton.worker.runtime import MakeRole, WorkerRuntime

LAST_WORDS_S = 0.25
"""For errors to reach clients, once nothing more is computed for them."""

_INNER: Mapping[Role, MakeRole] = {Role.PREFILL: PrefillService, Role.DECODE: DecodeService}


@dataclass(frozen=True)
class Addresses:
    """Each `host:port`."""

    http: str
    grpc: str
    metrics: str


class LocalWorker:
    """`async with LocalWorker(config, engine) as worker:` serves inside, on the running loop.

    With role `both` it stands alone. With `prefill` or `decode` it has that role for the routers
    in `config` too, and what its own clients ask is answered by its engine from end to end.
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
    ) -> None:
        """http_port: 0 for any free one. drain_s: requests under way may finish, at the stop."""
        self._config = config
        self._engine = engine
        self._http_port = http_port
        self._model_id = served_model_name or model_name(config.engine.model)
        self._incremental = incremental_streaming_output
        self._drain_s = drain_s
        self._open = contextlib.AsyncExitStack()
        self._context: WorkerContext
        self.backend: LocalBackend
        self.addresses: Addresses

    async def __aenter__(self) -> Self:
        """Raises `TextError` for a folder without a tokenizer, ConfigError for a taken port."""
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
            app = make_app(self.backend, text, self._metrics, more_routes=routes)
            http = HttpServer(app, config.host, self._http_port)
            await http.start()
            guard.pop_all()
        # The engine stops first: what it ends, HTTP can still say.
        opening.push_async_callback(http.stop, LAST_WORDS_S)
        opening.push_async_callback(runtime.stop, self._drain_s)
        self.addresses = Addresses(
            f"{config.host}:{http.port}", started.address, started.metrics_address
        )

    def _metrics(self) -> MetricsPage:
        return MetricsPage(generate_latest(self._context.metrics.registry), CONTENT_TYPE_LATEST)
