"""`baton.v1.Registry`: how workers join, and how the router notices that they went."""

import asyncio
import logging
from collections.abc import AsyncIterator

import grpc

from baton.api.errors import ApiError, ErrorCode
from baton.proto import worker_pb2_grpc
from baton.proto.worker_pb2 import RegistryReply, WorkerReport
from baton.router.errors import Refused
from baton.router.worker_table import Worker, WorkerTable

log = logging.getLogger(__name__)


class RegistryServicer(worker_pb2_grpc.RegistryServicer):
    """Puts into the table what workers say; `watch_leases` runs beside it."""

    def __init__(self, table: WorkerTable, router_id: str, lease_ms: int) -> None:
        self._table = table
        self._welcome = RegistryReply(router_id=router_id, lease_ms=lease_ms)
        self._goodbye = RegistryReply(router_id=router_id, lease_ms=lease_ms, leaving=True)

    async def Register(
        self, reports: AsyncIterator[WorkerReport], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[RegistryReply]:
        worker: Worker | None = None
        try:
            async for report in reports:
                taken_on = worker is not None
                worker = worker or self._take_on(report)
                self._renew(worker, report)
                if not taken_on:
                    yield self._welcome
                if report.leaving:
                    yield self._goodbye
        except Refused as refused:
            log.warning("turned a worker away: %s", refused)
            yield RegistryReply(router_id=self._welcome.router_id, error=refused.error.to_proto())
        finally:
            if worker is not None:
                self._table.remove(worker, "its registration stream ended")

    async def watch_leases(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._table.check())

    def _take_on(self, report: WorkerReport) -> Worker:
        if not report.HasField("hello"):
            raise Refused(
                ApiError(ErrorCode.INVALID_REQUEST, "the first report must carry a Hello")
            )
        return self._table.register(report.hello)

    def _renew(self, worker: Worker, report: WorkerReport) -> None:
        status = report.status if report.HasField("status") else None
        if not self._table.report(worker, status, report.leaving):
            raise Refused(
                ApiError(
                    ErrorCode.UNAVAILABLE,
                    f"the registration of {worker.worker_id} had ended: its lease ran out, or a "
                    "newer one took its place; register again",
                )
            )
