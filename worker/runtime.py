"""One worker's gRPC server round one engine. Everything here runs on one asyncio loop."""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Coroutine
from typing import Any

from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from baton.engine.engine import Engine
from baton.engine.errors import ConfigError
from baton.proto import common_pb2, handoff_pb2, inference_pb2, worker_pb2, worker_pb2_grpc
from baton.proto.version import PROTOCOL_MAJOR, PROTOCOL_MINOR
from baton.transfer.errors import ChannelError
from baton.transfer.grpc_options import OPTIONS
from baton.transfer.local_channel import LocalHub
from baton.transfer.poller import Poller
from baton.transfer.regions import EngineMemory
from baton.worker.config import Role, WorkerConfig
from baton.worker.context import RoleService, WorkerContext
from baton.worker.engine_port import EnginePort, EventBatch
from baton.worker.grammars import Grammars
from baton.worker.handoff_book import HandoffBook
from baton.worker.host_process import this_process
from baton.worker.metrics import WorkerMetrics
from baton.worker.metrics_server import MetricsServer
from baton.worker.model_identity import worker_fingerprint
from baton.worker.registration import Registration
from baton.worker.reporter import Reporter
from baton.worker.service import WorkerServicer
from baton.worker.started import Started

log = logging.getLogger(__name__)

MakeRole = Callable[[WorkerContext], RoleService]
SERVICES = {
    Role.PREFILL: handoff_pb2.DESCRIPTOR.services_by_name["Handoff"].full_name,
    Role.DECODE: worker_pb2.DESCRIPTOR.services_by_name["Rank"].full_name,
    Role.BOTH: inference_pb2.DESCRIPTOR.services_by_name["Inference"].full_name,
}
# A worker of both roles joins no cluster: nobody reads what role it says it has.
ROLES = {
    Role.PREFILL: common_pb2.PREFILL,
    Role.DECODE: common_pb2.DECODE,
    Role.BOTH: common_pb2.ROLE_UNSPECIFIED,
}
WORKER_SERVICE = worker_pb2.DESCRIPTOR.services_by_name["Worker"].full_name
DRAIN_POLL_S = 0.02
ON_THE_WAY_S = 0.1  # for what was placed here just before a router heard it
GOODBYE_S = 1.0  # for routers to hear that this worker leaves, and place nothing more here
ENGINE_STOP_S = 60.0  # the longest step


class WorkerRuntime:
    """`start` and `stop` are called once each, on one running loop."""

    def __init__(
        self,
        config: WorkerConfig,
        engine: Engine,
        make_role: MakeRole,
        on_engine_lost: Callable[[], None] = lambda: None,
        hub: LocalHub | None = None,
    ) -> None:
        """on_engine_lost: told last, on the loop, once everybody else knows. hub: where other
        engines of this process are found."""
        self._hub = hub
        self._config = config
        self._engine = engine
        self._make_role = make_role
        self._on_engine_lost = on_engine_lost
        self._tasks: list[asyncio.Task[None]] = []
        self._registrations: list[Registration] = []
        # Wall-clock nanoseconds: larger in every later life of this worker.
        self.incarnation = time.time_ns()

    async def start(self, load_s: float = 0.0) -> Started:
        """Serving when it returns. Raises ConfigError where a port is taken, or there is no such
        channel here."""
        config = self._config
        self._server = aio.server(options=OPTIONS)
        address = f"{config.host}:{self._listen()}"
        self._context = self._make_context(address)
        try:
            self._role = self._make_role(self._context)
        except ChannelError as error:
            raise ConfigError(str(error)) from error
        metrics_address = f"{config.host}:{await self._serve_metrics()}"
        self._reporter = Reporter(self._context, self._role, metrics_address)
        self._add_services()
        self._context.port.start(self, self._reporter.load_changed)
        await self._server.start()
        self._spawn(self._reporter.run())
        hello = self._context.hello
        for router in config.routers:
            self._registrations.append(Registration(router, hello, self._reporter, config.lease_s))
            self._spawn(self._registrations[-1].run())
        await self._health.set(SERVICES[config.role], health_pb2.HealthCheckResponse.SERVING)
        await self._health.set("", health_pb2.HealthCheckResponse.SERVING)
        log.info("serving", extra={"address": address, "metrics_address": metrics_address})
        return Started(
            config.worker_id, self.incarnation, address, metrics_address, os.getpid(), load_s
        )

    async def stop(self, grace_s: float) -> None:
        """Take nothing new, let what is under way end for `grace_s`, then end everything."""
        self._reporter.leaving = True
        self._reporter.load_changed()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                await asyncio.gather(*(each.heard_leaving() for each in self._registrations))
                if self._registrations and grace_s:
                    await asyncio.sleep(ON_THE_WAY_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while self._role.busy:
                    await asyncio.sleep(DRAIN_POLL_S)
        await self._role.close()
        await self._context.grammars.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.stop(None)
        await asyncio.to_thread(self._context.port.stop, ENGINE_STOP_S)
        await asyncio.to_thread(self._context.poller.stop)
        await self._metrics_server.close()

    def _listen(self) -> int:
        wanted = f"{self._config.host}:{self._config.grpc_port}"
        try:
            port: int = self._server.add_insecure_port(wanted)
        except RuntimeError as error:  # what grpc raises for every reason
            raise ConfigError(
                f"cannot listen on {wanted}: {error}; choose another port, or 0 for any"
            ) from error
        return port

    def _listen_for_data(self, address: str) -> str:
        """With certificates, a port of its own; else where all else is served."""
        tls = self._config.tls
        if tls is None:
            return address
        try:
            port: int = self._server.add_secure_port(f"{self._config.host}:0", tls.server())
        except OSError as error:
            raise ConfigError(f"cannot read a certificate: {error}") from error
        return f"{self._config.host}:{port}"

    async def _serve_metrics(self) -> int:
        self._metrics_server = MetricsServer(self._context.metrics.registry)
        port = self._config.metrics_port
        try:
            return await self._metrics_server.start(self._config.host, port)
        except OSError as error:
            raise ConfigError(
                f"cannot serve metrics on port {port}: {error}; choose another, or 0 for any"
            ) from error

    def _make_context(self, address: str) -> WorkerContext:
        config, engine = self._config, self._engine
        metrics = WorkerMetrics(config.worker_id, config.role)
        memory = EngineMemory(engine.states, engine.pages)
        on_device = any(span.device is not None for span in memory.spans)
        return WorkerContext(
            config=config,
            engine=engine,
            port=EnginePort(engine, metrics.observe_step),
            grammars=Grammars(engine.grammars),
            memory=memory,
            data_address=self._listen_for_data(address),
            hello=common_pb2.Hello(
                protocol_major=PROTOCOL_MAJOR,
                protocol_minor=PROTOCOL_MINOR,
                worker=common_pb2.WorkerIdentity(
                    worker_id=config.worker_id,
                    incarnation=self.incarnation,
                    address=address,
                    role=ROLES[config.role],
                    group=config.dp_group,
                    rank=config.dp_rank,
                ),
                process=this_process(on_device=on_device),
                fingerprint=worker_fingerprint(config.engine, engine.model_config, engine.plan),
            ),
            metrics=metrics,
            handoffs=HandoffBook(metrics),
            poller=Poller("transfers"),
            hub=self._hub,
        )

    def _add_services(self) -> None:
        server = self._server
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        servicer = WorkerServicer(self._context, self._reporter)
        worker_pb2_grpc.add_WorkerServicer_to_server(servicer, server)
        self._role.add_to(server)
        names = (
            SERVICES[self._config.role],
            WORKER_SERVICE,
            health.SERVICE_NAME,
            reflection.SERVICE_NAME,
        )
        reflection.enable_server_reflection(names, server)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        task.add_done_callback(_log_failure)
        self._tasks.append(task)

    def on_batch(self, batch: EventBatch) -> None:
        self._role.on_batch(batch)

    def on_engine_failure(self, error: Exception) -> None:
        """The engine is gone. Health says so; whoever started this process starts it again."""
        log.critical("the engine has stopped: %s: %s", type(error).__name__, error)
        self._role.on_engine_failure(error)
        self._spawn(self._health.set("", health_pb2.HealthCheckResponse.NOT_SERVING))
        self._on_engine_lost()


def _log_failure(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a task of the worker ended: %s: %s", type(error).__name__, error)
