"""The router's process: one asyncio loop that serves gRPC and HTTP."""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection
from prometheus_client import CONTENT_TYPE_LATEST

from baton.api.grpc_inference import InferenceServicer
from baton.api.http import MetricsPage, make_app
from baton.api.native import native_routes
from baton.api.text_service import TextService
from baton.proto import inference_pb2, inference_pb2_grpc, worker_pb2, worker_pb2_grpc
from baton.router.config import RouterConfig
from baton.router.errors import ConfigError
from baton.router.health import watch_health
from baton.router.http_server import HttpServer
from baton.router.metrics import RouterMetrics
from baton.router.model import read_model_info
from baton.router.rank_session import SessionOptions
from baton.router.registry import RegistryServicer
from baton.router.routes import router_routes
from baton.router.service import RouterBackend
from baton.router.worker_table import WorkerTable
from baton.text.chat_template import ChatTemplate
from baton.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

INFERENCE = inference_pb2.DESCRIPTOR.services_by_name["Inference"].full_name
REGISTRY = worker_pb2.DESCRIPTOR.services_by_name["Registry"].full_name
HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
LAST_WORDS_S = 0.25
"""For errors to reach clients, once nothing more is computed for them."""


@dataclass(frozen=True)
class Started:
    """Where a router listens, each `host:port`."""

    http_address: str
    grpc_address: str


class RouterServer:
    """`start` and `stop` are called once each, on one running loop."""

    def __init__(self, config: RouterConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._open = contextlib.AsyncExitStack()
        self._tasks: set[asyncio.Task[None]] = set()
        self._backend: RouterBackend | None = None

    async def start(self) -> Started:
        """Serving when it returns. Raises ConfigError or `TextError` and leaves nothing behind."""
        async with contextlib.AsyncExitStack() as opening:
            started = await self._start(opening)
            self._open = opening.pop_all()
        log.info("serving HTTP on %s, gRPC on %s", started.http_address, started.grpc_address)
        return started

    async def stop(self, grace_s: float = 5.0) -> None:
        """Requests that are here have `grace_s` to end; new ones are turned away at once."""
        if self._backend is not None:
            await self._backend.drain(grace_s)
        await self._open.aclose()

    def retire(self, ranks: Collection[int]) -> None:
        """See `RouterBackend.retire`. A router that does not serve knows of no ranks."""
        if self._backend is not None:
            self._backend.retire(ranks)

    async def _start(self, opening: contextlib.AsyncExitStack) -> Started:
        config = self._config
        tokenizer = Tokenizer.from_folder(config.model)
        text = TextService(tokenizer, ChatTemplate.from_folder(config.model))
        opening.callback(text.close)
        router_id = f"router-{secrets.token_hex(4)}"
        table = WorkerTable(config.lease_s, self._clock)
        metrics = RouterMetrics()
        backend = RouterBackend(
            config,
            read_model_info(config.model, config.model_id, tokenizer),
            table,
            SessionOptions(router_id, config.lease_s, self._clock),
            metrics,
        )
        opening.push_async_callback(self._stop_tasks)
        registry = RegistryServicer(table, router_id, config.lease_ms)
        health = health_aio.HealthServicer()
        grpc_port = await self._serve_grpc(
            opening, InferenceServicer(backend, text), registry, health
        )
        http = HttpServer(
            make_app(
                backend,
                text,
                lambda: MetricsPage(metrics.page(), CONTENT_TYPE_LATEST),
                max_body_bytes=config.max_body_bytes,
                more_routes=[
                    *native_routes(
                        backend,
                        text,
                        max_body_bytes=config.max_body_bytes,
                        incremental=config.incremental_streaming_output,
                    ),
                    *router_routes(table),
                ],
            ),
            config.host,
            config.http_port,
        )
        opening.push_async_callback(http.stop, LAST_WORDS_S)
        await http.start()
        self._run(registry.watch_leases())
        self._run(watch_health(health, backend, INFERENCE))
        # The last to open is the first to close: requests that remain fail while both servers can
        # still say so.
        opening.push_async_callback(backend.stop)
        self._backend = backend
        return Started(f"{config.host}:{http.port}", f"{config.host}:{grpc_port}")

    async def _serve_grpc(
        self,
        opening: contextlib.AsyncExitStack,
        inference: InferenceServicer,
        registry: RegistryServicer,
        health: health_aio.HealthServicer,
    ) -> int:
        """The port."""
        config = self._config
        server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", config.max_body_bytes),
                ("grpc.max_send_message_length", -1),
                # Two routers must not share a port without noticing.
                ("grpc.so_reuseport", 0),
                # Workers ping on their streams here, to see a machine that was lost; so do we.
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.keepalive_time_ms", 10_000),
                ("grpc.keepalive_timeout_ms", 5_000),
            )
        )
        inference_pb2_grpc.add_InferenceServicer_to_server(inference, server)
        worker_pb2_grpc.add_RegistryServicer_to_server(registry, server)
        health_pb2_grpc.add_HealthServicer_to_server(health, server)
        reflection.enable_server_reflection(
            (INFERENCE, REGISTRY, HEALTH, reflection.SERVICE_NAME), server
        )
        try:
            port: int = server.add_insecure_port(f"{config.host}:{config.grpc_port}")
        except RuntimeError as error:
            raise ConfigError(
                f"cannot listen for gRPC on {config.host} port {config.grpc_port}: {error}; name "
                "another address, or port 0 for any free one"
            ) from error
        opening.push_async_callback(server.stop, LAST_WORDS_S)
        await server.start()
        return port

    def _run(self, work: Coroutine[None, None, None]) -> None:
        self._tasks.add(asyncio.create_task(work))

    async def _stop_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
