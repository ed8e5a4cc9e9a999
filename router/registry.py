"""The gRPC service `baton.v1.Registry`: workers join, report and leave."""

import asyncio
import logging
from collections.abc import AsyncIterator

import grpc

from baton.core.errors import ROUTER, BatonError, PeerLostError, RequestError
from baton.proto import worker_pb2_grpc
from baton.proto.worker_pb2 import RegistryReply, WorkerReport
from baton.router.worker_table import Worker, WorkerTable
from baton.rpc.access import check_claim
from baton.rpc.errors import error_of

log = logging.getLogger(__name__)


class RegistryServicer(worker_pb2_grpc.RegistryServicer):
    """The service. It writes workers' reports into the table; `watch_leases` must run beside it."""

    def __init__(self, table: WorkerTable, router_id: str, lease_ms: int) -> None:
        self._table = table
        self._accepted = RegistryReply(router_id=router_id, lease_ms=lease_ms)
        self._leaving = RegistryReply(router_id=router_id, lease_ms=lease_ms, leaving=True)

    async def Register(
        self, reports: AsyncIterator[WorkerReport], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[RegistryReply]:
        worker: Worker | None = None
        try:
            async for report in reports:
                registered = worker is not None
                worker = worker or self._register(report, context)
                self._renew(worker, report)
                if not registered:
                    yield self._accepted
                if report.leaving:
                    yield self._leaving
        except BatonError as refused:
            log.warning("refused a worker: %s", refused)
            error = error_of(refused, ROUTER)
            yield RegistryReply(router_id=self._accepted.router_id, error=error)
        finally:
            if worker is not None:
                self._table.remove(worker, "its registration stream ended")

    async def watch_leases(self) -> None:
        """Drop workers whose lease is over, until cancelled."""
        while True:
            await asyncio.sleep(self._table.tick_s)
            self._table.tick()

    def _register(self, report: WorkerReport, context: grpc.aio.ServicerContext) -> Worker:
        if not report.HasField("hello"):
            raise RequestError("the first report must carry a Hello")
        check_claim(context, report.hello)
        return self._table.register(report.hello)

    def _renew(self, worker: Worker, report: WorkerReport) -> None:
        status = report.status if report.HasField("status") else None
        if not self._table.report(worker, status, report.leaving):
            raise PeerLostError(
                f"the registration of {worker.worker_id} had ended: its lease ran out, or a newer "
                "one took its place; register again"
            )
