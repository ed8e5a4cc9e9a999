"""Spans that are sent to a collector by OTLP over gRPC. Its import needs the extra `otel`."""

import time
from collections.abc import Mapping

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span as SdkSpan
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from baton import __version__
from baton.rpc.tracing import Attribute, TraceContext, wall_ns

EXPORT_S = 2.0
"""The time for one message to the collector, and for the last ones at the end."""
_W3C = TraceContextTextMapPropagator()


class OtlpSpan:
    """A `TraceSpan`."""

    def __init__(self, span: SdkSpan) -> None:
        self._span = span
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, set_span_in_context(span))
        self.context = TraceContext(carrier["traceparent"], carrier.get("tracestate", ""))

    def end(
        self, error: str = "", at_ns: int | None = None, **attributes: Attribute | None
    ) -> None:
        """at_ns: by the wall clock; None: now."""
        if not self._span.is_recording():  # it has ended, or the caller samples no spans
            return
        self._span.set_attributes(_given(attributes))
        if error:
            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end(at_ns)


class OtlpTracing:
    """`Tracing` by OpenTelemetry's SDK. A thread sends the spans; what it cannot send is lost.

    A caller's decision to sample a trace or not is followed. OTEL_TRACES_SAMPLER decides for traces
    that begin here, and OTEL_SERVICE_NAME names the service, as for other programs.
    """

    def __init__(self, endpoint: str, resource: Mapping[str, str]) -> None:
        named = {"service.name": "baton", "service.version": __version__, **resource}
        self._provider = TracerProvider(resource=Resource.create(named), shutdown_on_exit=False)
        exporter = OTLPSpanExporter(
            endpoint, insecure=endpoint.startswith("http://"), timeout=EXPORT_S
        )
        self._processor = BatchSpanProcessor(exporter)
        self._provider.add_span_processor(self._processor)
        self._tracer = self._provider.get_tracer("baton")

    def begin(
        self,
        name: str,
        parent: TraceContext | None,
        *,
        since_s: float | None = None,
        serves: bool = False,
        **attributes: Attribute | None,
    ) -> OtlpSpan:
        began_ns = time.time_ns() if since_s is None else wall_ns(since_s)
        kind = SpanKind.SERVER if serves else SpanKind.INTERNAL
        return self._start(name, parent, began_ns, kind, attributes)

    def record(
        self,
        name: str,
        parent: TraceContext,
        since_s: float,
        until_s: float,
        **attributes: Attribute | None,
    ) -> None:
        began_ns = wall_ns(since_s)
        span = self._start(name, parent, began_ns, SpanKind.INTERNAL, attributes)
        span.end(at_ns=wall_ns(until_s))

    def close(self) -> None:
        self._provider.force_flush(round(EXPORT_S * 1000))
        self._provider.shutdown()

    def _start(
        self,
        name: str,
        parent: TraceContext | None,
        began_ns: int,
        kind: SpanKind,
        attributes: Mapping[str, Attribute | None],
    ) -> OtlpSpan:
        context = Context()
        if parent is not None:
            carrier = {"traceparent": parent.traceparent, "tracestate": parent.tracestate}
            context = _W3C.extract(carrier, context)
        span = self._tracer.start_span(name, context, kind, _given(attributes), start_time=began_ns)
        return OtlpSpan(span)


def _given(attributes: Mapping[str, Attribute | None]) -> dict[str, Attribute]:
    return {name: value for name, value in attributes.items() if value is not None}
