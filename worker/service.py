"""`baton.v1.Worker`: the calls that every worker answers, whatever its role."""

from grpc import aio

from baton.core.error_codes import ErrorCode
from baton.core.errors import BatonError
from baton.engine.engine import Engine
from baton.proto import worker_pb2, worker_pb2_grpc
from baton.rpc.errors import error_of, make_error
from baton.worker.cache_flush import flush_when_idle
from baton.worker.context import WorkerContext
from baton.worker.engine_profile import ProfileLimits
from baton.worker.reporter import Reporter


class WorkerServicer(worker_pb2_grpc.WorkerServicer):
    def __init__(self, context: WorkerContext, reporter: Reporter) -> None:
        self._context = context
        self._reporter = reporter

    async def Status(
        self, request: worker_pb2.StatusRequest, context: aio.ServicerContext
    ) -> worker_pb2.WorkerStatus:
        return await self._reporter.full_status()

    async def FlushCache(
        self, request: worker_pb2.FlushCacheRequest, context: aio.ServicerContext
    ) -> worker_pb2.FlushCacheReply:
        """Wait until the engine is idle, then empty the prefix cache; or wait until no request uses
        what alone is to be removed.
        """
        port, timeout_s = self._context.port, request.timeout_ms / 1000
        try:
            flushed = await flush_when_idle(port, timeout_s, request.salts)
        except BatonError as failure:
            return worker_pb2.FlushCacheReply(error=error_of(failure, self._context.worker_id))
        if flushed:
            self._reporter.load_changed()
            return worker_pb2.FlushCacheReply()
        message = (
            f"{self._context.worker_id} is still at work after {request.timeout_ms} ms; its cache "
            "was not flushed: wait longer, or abort what runs"
        )
        error = make_error(ErrorCode.DEADLINE_EXCEEDED, self._context.worker_id, message)
        return worker_pb2.FlushCacheReply(error=error)

    async def Audit(
        self, request: worker_pb2.AuditRequest, context: aio.ServicerContext
    ) -> worker_pb2.AuditReply:
        findings = await self._context.port.call(Engine.audit)
        return worker_pb2.AuditReply(clean=not findings, findings=findings)

    async def StartProfile(
        self, request: worker_pb2.StartProfileRequest, context: aio.ServicerContext
    ) -> worker_pb2.StartProfileReply:
        seconds = request.timeout_ms / 1000
        try:
            limits = ProfileLimits(
                request.steps, seconds, request.with_stack, request.record_shapes
            )
            await self._context.profiler.start(limits)
        except BatonError as error:
            return worker_pb2.StartProfileReply(error=error_of(error, self._context.worker_id))
        return worker_pb2.StartProfileReply()

    async def StopProfile(
        self, request: worker_pb2.StopProfileRequest, context: aio.ServicerContext
    ) -> worker_pb2.StopProfileReply:
        """End the profile and write it; the reply comes when its file is complete."""
        try:
            made = await self._context.profiler.stop()
        except BatonError as error:
            return worker_pb2.StopProfileReply(error=error_of(error, self._context.worker_id))
        return worker_pb2.StopProfileReply(file=str(made.file), steps=made.steps, bytes=made.size)

    async def Metrics(
        self, request: worker_pb2.MetricsRequest, context: aio.ServicerContext
    ) -> worker_pb2.MetricsReply:
        """Answer at once, also while the engine is in a long step."""
        return worker_pb2.MetricsReply(text=self._context.metrics.page())
