"""The life of one worker: one engine, one role and their servers, on one asyncio loop."""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from baton.core.errors import ConfigError, StoppedError
from baton.core.supervised import OnFailure, ProcessSupervisor, spawn
from baton.engine.engine import Engine
from baton.engine.layout.device import device_of, use_device
from baton.transfer.channels.local_hub import LocalHub
from baton.transfer.errors import ChannelError
from baton.worker.config import WorkerConfig
from baton.worker.context import RoleService, WorkerContext
from baton.worker.engine_port import EventBatch
from baton.worker.grpc_server import WorkerServer
from baton.worker.make_context import make_context
from baton.worker.registration import Registration
from baton.worker.registrations import Registrations
from baton.worker.reporter import Reporter
from baton.worker.service import WorkerServicer

log = logging.getLogger(__name__)

MakeRole = Callable[[WorkerContext], RoleService]
DRAIN_POLL_S = 0.02
PLACED_BEFORE_S = 0.1  # for requests that a router placed here before it heard of the leaving
LEAVE_NOTICE_S = 1.0  # for routers to acknowledge that this worker leaves
END_NOTICE_S = 0.5  # for routers to drop this worker when its engine has ended
ENGINE_STOP_S = 60.0  # the longest step


@dataclass(frozen=True)
class WorkerStarted:
    """The report of a worker that serves."""

    worker_id: str
    incarnation: int
    address: str  # host:port of its gRPC server
    pid: int


class WorkerRuntime:
    """Starts and stops a worker. `start` and `stop` are called once each, on one running loop."""

    def __init__(
        self,
        config: WorkerConfig,
        engine: Engine,
        make_role: MakeRole,
        owner: ProcessSupervisor,
        hub: LocalHub | None = None,
    ) -> None:
        """owner: of all that runs beside this in the process. hub: where other engines of this
        process are found."""
        self._hub = hub
        self._config = config
        self._engine = engine
        self._make_role = make_role
        self._owner = owner
        self._departure: object | None = None  # the last drain or stop; None: it was taken back
        self._stopping = False
        # Wall-clock nanoseconds: larger at every later start of this worker on this machine.
        self.incarnation = config.incarnation or time.time_ns()

    async def start(self) -> WorkerStarted:
        """Start to serve.

        Raises ConfigError if a port is taken or the configured channel is not available.
        """
        config = self._config
        _use_device(device_of(config.engine.device))
        self._owner.use_running_loop()
        self._server = WorkerServer(config, self._owner)
        self._context = make_context(
            config, self._engine, self.incarnation, self._server, self._owner, self._hub
        )
        if self._server.credentials is not None:
            left = self._server.credentials.seconds_left
            self._context.metrics.certificate("internal", left)
        try:
            self._role = self._make_role(self._context)
        except ChannelError as error:
            raise ConfigError(str(error)) from error
        self._reporter = Reporter(self._context, self._role)
        self._server.add_services(self._role, WorkerServicer(self._context, self._reporter))
        self._owner.when_ending(self._tell_end)
        self._context.port.start(self, self._reporter.load_changed)
        await self._server.start()
        # ANEW: each round asks the engine afresh. Routers drop a worker without reports meanwhile.
        spawn(self._reporter.run, self._owner, OnFailure.ANEW, "reporter")
        self._registrations = Registrations(self._context, self._reporter)
        await self._server.report_serving()
        address = self._server.address
        log.info("serving", extra={"address": address})
        return WorkerStarted(config.worker_id, self.incarnation, address, os.getpid())

    async def stop(self, grace_s: float) -> None:
        """Refuse new requests, let those under way finish for `grace_s`, then end everything."""
        self._stopping = True
        await self._leave(grace_s)
        await self._role.close()
        await self._context.grammars.close()
        await self._context.profiler.close()
        await self._owner.close()
        await self._server.stop()
        await asyncio.to_thread(self._context.port.stop, ENGINE_STOP_S)
        await asyncio.to_thread(self._context.poller.stop)
        if self._context.tracing is not None:
            await asyncio.to_thread(self._context.tracing.close)

    def meet_routers(self, addresses: Mapping[str, str]) -> None:
        """Register with the routers at these addresses, by their names, wherever they were."""
        if not self._stopping:
            self._registrations.meet(addresses)

    async def drain(self, grace_s: float) -> None:
        """Refuse new requests, let those under way finish for `grace_s`, and leave the rest to
        other workers. The worker stays as it is until `undrain` or `stop`; one that comes before
        the end of the drain ends it, and nothing is moved.
        """
        if await self._leave(grace_s):
            self._role.hand_over("was drained")

    async def undrain(self) -> None:
        """Take requests again, and keep those under way. Raises ConfigError for a worker that
        stops.
        """
        if self._stopping:
            raise ConfigError(f"{self._config.worker_id} stops, and takes no requests again")
        if not self._reporter.leaving:
            return
        self._departure = None
        self._reporter.leaving = False
        self._reporter.load_changed()
        await asyncio.gather(*(self._return_to(each) for each in self._registrations))

    async def _return_to(self, registration: Registration) -> None:
        try:
            async with asyncio.timeout(LEAVE_NOTICE_S):
                await registration.heard_return()
        except TimeoutError:
            # The release before this one does not take back that a worker leaves. What is under way
            # is then continued by whatever worker the router chooses.
            registration.renew()

    async def _leave(self, grace_s: float) -> bool:
        """Tell the routers to place nothing more here, and give what is under way `grace_s`.

        Return False if the worker was meanwhile told to return, or to leave again.
        """
        self._departure = departure = object()
        self._reporter.leaving = True
        self._reporter.load_changed()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_NOTICE_S):
                if await self._registrations.heard_leaving() and grace_s:
                    await asyncio.sleep(PLACED_BEFORE_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while self._departure is departure and await self._busy():
                    await asyncio.sleep(DRAIN_POLL_S)
        return self._departure is departure

    async def _busy(self) -> bool:
        """Return true while requests are under way, or what they left is written to files."""
        if self._role.busy or self._config.engine.file_cache is None:
            return bool(self._role.busy)
        with contextlib.suppress(StoppedError):
            return await self._context.port.call(_writes_files)
        return False

    def on_batch(self, batch: EventBatch) -> None:
        self._role.on_batch(batch)

    def on_engine_failure(self, error: Exception) -> None:
        """End the process, as a worker without an engine is of no use."""
        self._owner.end("engine", error)

    def on_lost_event(self, error: Exception) -> None:
        """End the process: a request waits for ever for an event that did not reach it."""
        self._owner.end("delivery of the engine's events", error)

    async def _tell_end(self, error: StoppedError) -> None:
        """Leave the routers, let requests go on elsewhere, and say to whoever asks that this
        process ends. A router that still had this worker would place the same requests here again
        at once, until they have no attempt left.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_NOTICE_S):
                await self._registrations.close()
        self._role.on_end(error)
        await self._server.report_not_serving()


def _writes_files(engine: Engine) -> bool:
    tier = engine.tier
    return tier is not None and tier.files is not None and tier.files.writing > 0


def _use_device(device: torch.device) -> None:
    """Set the device of this thread, and of those on which `asyncio.to_thread` starts NIXL agents
    and reads the pools.
    """
    use_device(device)
    if device.type == "cuda":
        asyncio.get_running_loop().set_default_executor(
            ThreadPoolExecutor(
                thread_name_prefix="aside", initializer=use_device, initargs=(device,)
            )
        )
