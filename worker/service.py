"""`baton.v1.Worker`: what can be asked of every worker, whatever its role."""

import asyncio

from grpc import aio

from baton.engine.engine import Engine
from baton.proto import common_pb2, worker_pb2, worker_pb2_grpc
from baton.worker.context import WorkerContext
from baton.worker.errors import make_error
from baton.worker.reporter import Reporter


class WorkerServicer(worker_pb2_grpc.WorkerServicer):
    def __init__(self, context: WorkerContext, reporter: Reporter) -> None:
        self._context = context
        self._reporter = reporter

    async def Status(
        self, request: worker_pb2.StatusRequest, context: aio.ServicerContext
    ) -> worker_pb2.WorkerStatus:
        return await self._reporter.status()

    async def FlushCache(
        self, request: worker_pb2.FlushCacheRequest, context: aio.ServicerContext
    ) -> worker_pb2.FlushCacheReply:
        """Waits until nothing is under way, then empties the prefix cache."""
        try:
            async with asyncio.timeout(request.timeout_ms / 1000):
                await self._idle()
        except TimeoutError:
            return self._not_flushed(f"still at work after {request.timeout_ms} ms")
        if not await self._context.port.call(Engine.flush_cache):
            return self._not_flushed("a request came in between")
        return worker_pb2.FlushCacheReply()

    async def Audit(
        self, request: worker_pb2.AuditRequest, context: aio.ServicerContext
    ) -> worker_pb2.AuditReply:
        findings = await self._context.port.call(Engine.audit)
        return worker_pb2.AuditReply(clean=not findings, findings=findings)

    async def _idle(self) -> None:
        number = 0
        while True:
            number, report = await self._reporter.next_report(number)
            status = report.status
            if not (status.running or status.waiting or status.handoffs):
                return

    def _not_flushed(self, why: str) -> worker_pb2.FlushCacheReply:
        message = f"the cache was not flushed: {why}; try again"
        error = make_error(
            common_pb2.DEADLINE_EXCEEDED, self._context.worker_id, message, retryable=True
        )
        return worker_pb2.FlushCacheReply(error=error)
