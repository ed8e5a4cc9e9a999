"""An OTLP collector: a gRPC server that keeps the spans it is sent."""

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from kit.polling import until
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2


@dataclass(frozen=True)
class Received:
    """One span, and the process that sent it."""

    span: trace_pb2.Span
    process: str

    @property
    def name(self) -> str:
        return str(self.span.name)

    @property
    def id(self) -> str:
        return bytes(self.span.span_id).hex()

    @property
    def parent(self) -> str:
        return bytes(self.span.parent_span_id).hex()

    @property
    def attributes(self) -> dict[str, Any]:
        return {each.key: _value(each.value) for each in self.span.attributes}

    @property
    def failed(self) -> bool:
        return bool(self.span.status.code == trace_pb2.Status.STATUS_CODE_ERROR)


@dataclass
class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    spans: list[Received] = field(default_factory=list)
    endpoint: str = ""

    async def Export(
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: object
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        for resource in request.resource_spans:
            named = {each.key: _value(each.value) for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                process = named["service.instance.id"]
                self.spans += [Received(span, process) for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    def of_trace(self, trace_id: str) -> list[Received]:
        found = [each for each in self.spans if bytes(each.span.trace_id).hex() == trace_id]
        return sorted(found, key=lambda each: each.span.start_time_unix_nano)

    async def until(self, trace_id: str, counts: Mapping[str, int]) -> list[Received]:
        """Return the trace's spans once there are so many of each name. Each process sends its own
        when it likes."""

        def whole() -> list[Received] | None:
            found = self.of_trace(trace_id)
            return found if Counter(counts) <= Counter(each.name for each in found) else None

        return await until(whole, lambda: Counter(e.name for e in self.of_trace(trace_id)))


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    server = grpc.aio.server()
    collector = Collector()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    collector.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield collector
    finally:
        await server.stop(None)
