"""The gRPC service `baton.v1.Registry`: workers join, report and leave."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from baton.core.errors import ROUTER, BatonError, PeerLostError, RequestError
from baton.proto import worker_pb2_grpc
from baton.proto.worker_pb2 import Demand, NameRequest, RegistryReply, RouterName, WorkerReport
from baton.router.cluster_view.state_index import StateIndex
from baton.router.cluster_view.status_check import check_details, check_status
from baton.router.cluster_view.worker_table import Worker, WorkerTable
from baton.router.cluster_view.worker_warnings import worker_warnings
from baton.rpc.access import check_claim
from baton.rpc.connections import endpoint_of_caller
from baton.rpc.errors import error_of
from baton.rpc.streams import first_of

log = logging.getLogger(__name__)


DEMAND_S = 0.05
"""Seconds between two looks at what this router wants of a worker that several routers share."""


class RegistryServicer(worker_pb2_grpc.RegistryServicer):
    """The service. It writes workers' reports into the table and the index of states.

    `watch_leases` must run beside it.
    """

    def __init__(
        self,
        table: WorkerTable,
        states: StateIndex,
        router_id: str,
        lease_ms: int,
        demand_of: Callable[[Worker, int], Demand],
        room_changed: Callable[[], None],
    ) -> None:
        """
        demand_of: returns what this router wants of a worker, by the number of the last share.
        room_changed: called when the worker's share is another.
        """
        self._table = table
        self._states = states
        self._router_id = router_id
        self._lease_ms = lease_ms
        self._demand_of = demand_of
        self._room_changed = room_changed

    async def Register(
        self, reports: AsyncIterator[WorkerReport], context: grpc.aio.ServicerContext
    ) -> None:
        stream = _Registered(context, self._reply)
        try:
            await first_of(self._read(stream, reports, context), self._tell_demand(stream))
        except BatonError as refused:
            if not stream.claimed:
                log.warning("refused a worker: %s", refused)
            elif self._table.notes.refused(stream.claimed, str(refused)):  # it asks again and again
                log.warning("refused worker %s: %s", stream.claimed, refused)
            await stream.send(error=error_of(refused, ROUTER))
        finally:
            if stream.worker is not None:
                self._table.remove(stream.worker, "its registration stream ended")
                if self._table.find(stream.worker.worker_id) is None:
                    self._table.notes.left(stream.worker.worker_id)

    async def _read(
        self,
        stream: "_Registered",
        reports: AsyncIterator[WorkerReport],
        context: grpc.aio.ServicerContext,
    ) -> None:
        async for report in reports:
            worker, known = stream.worker, stream.worker is not None
            if worker is None:
                worker = stream.worker = self._register(stream, report, context)
            else:
                self._check(report)
                if report.HasField("status"):
                    self._table.check_context(worker, report.status.max_model_len)
            before = self._table.find(worker.worker_id)
            self._renew(worker, report)
            if not known:
                self._joined(worker, context)
                demand = self._demand_of(self._table.worker(worker.worker_id), 0)
                await stream.send(demand=demand, keeps_details=True)
            if report.HasField("share") and report.share.number != stream.share:
                stream.share = report.share.number
                self._room_changed()
                stream.read_share.set()
            elif not report.HasField("share") and stream.share:
                stream.share = 0  # it is alone again
                self._room_changed()
            if report.HasField("cache") and not self._states.report(worker, report.cache):
                await stream.send(cache_wanted=True)
            self._states.expected.heard(worker)
            if report.leaving:
                await stream.send(leaving=True)
            elif before is not None and before.leaving:
                await stream.send(returned=True)

    async def _tell_demand(self, stream: "_Registered") -> None:
        """Tell a worker that several routers share what this one wants, as often as it changes."""
        told: Demand | None = None
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DEMAND_S if stream.share else None):
                    await stream.read_share.wait()
            stream.read_share.clear()
            worker = None if stream.worker is None else self._table.find(stream.worker.worker_id)
            if worker is None or not stream.share:
                continue
            wanted = self._demand_of(worker, stream.share)
            if wanted != told:
                await stream.send(demand=wanted)
                told = wanted

    async def Name(self, request: NameRequest, context: grpc.aio.ServicerContext) -> RouterName:
        return RouterName(name=self._router_id.split("/")[0])

    async def watch_leases(self) -> None:
        """Drop workers whose lease is over, until cancelled."""
        while True:
            await asyncio.sleep(self._table.tick_s)
            self._table.tick()

    def _reply(self, **more: Any) -> RegistryReply:
        return RegistryReply(router_id=self._router_id, lease_ms=self._lease_ms, **more)

    def _register(
        self, stream: "_Registered", report: WorkerReport, context: grpc.aio.ServicerContext
    ) -> Worker:
        if not report.HasField("hello"):
            raise RequestError("the first report must carry a Hello")
        check_claim(context, report.hello)
        stream.claimed = report.hello.worker.worker_id
        self._check(report)
        return self._table.register(report.hello, report.status.max_model_len)

    def _check(self, report: WorkerReport) -> None:
        """Raise RequestError for a report that would break something here."""
        if report.HasField("status"):
            check_status(report.status)
            if not report.same_details:
                check_details(report.status)

    def _joined(self, worker: Worker, context: grpc.aio.ServicerContext) -> None:
        """Record a worker that was taken on, and warn of one that harms the others."""
        self._table.notes.joined(worker.worker_id, endpoint_of_caller(context.peer())[0])
        warning = worker_warnings(self._table).get(worker.worker_id)
        if warning:
            log.warning("worker %s: %s", worker.worker_id, warning)

    def _renew(self, worker: Worker, report: WorkerReport) -> None:
        status = report.status if report.HasField("status") else None
        share = report.share.units if report.HasField("share") else None
        if not self._table.report(
            worker,
            status,
            report.leaving,
            share,
            report.routers,
            same_details=report.same_details,
        ):
            raise PeerLostError(
                f"the registration of {worker.worker_id} had ended: its lease ran out, or a newer "
                "one took its place; register again"
            )


class _Registered:
    """The stream of one worker."""

    def __init__(
        self, context: grpc.aio.ServicerContext, reply: Callable[..., RegistryReply]
    ) -> None:
        self.worker: Worker | None = None  # once it is registered
        self.claimed = ""  # its name, once its certificate has proved that
        self.share = 0  # the number of the last share that was read; 0: this router is the only one
        self.read_share = asyncio.Event()  # and not answered yet
        self._context = context
        self._reply = reply
        self._writing = asyncio.Lock()

    async def send(self, **more: Any) -> None:
        async with self._writing:
            await self._context.write(self._reply(**more))
