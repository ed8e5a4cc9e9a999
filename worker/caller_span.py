"""The parent, in another process, of a worker's spans of one request."""

from baton.proto import common_pb2
from baton.rpc.tracing import TraceContext, TraceSpan, Tracing
from baton.worker.context import WorkerContext


class CallerSpan:
    """The span of the process that sent a request. This worker's spans of it are its children."""

    def __init__(self, tracing: Tracing, parent: TraceContext, request_id: str) -> None:
        self._tracing = tracing
        self._parent = parent
        self._request_id = request_id

    @classmethod
    def of(
        cls, context: WorkerContext, trace: common_pb2.TraceContext, request_id: str
    ) -> "CallerSpan | None":
        """Return None where no spans are sent, or the request came without a trace."""
        if context.tracing is None or not trace.traceparent:
            return None
        parent = TraceContext(trace.traceparent, trace.tracestate)
        return cls(context.tracing, parent, request_id)

    def begin(self, name: str, *, attempt: int) -> TraceSpan:
        return self._tracing.begin(name, self._parent, request_id=self._request_id, attempt=attempt)

    def record(self, name: str, since_s: float, until_s: float) -> None:
        """since_s, until_s: by `time.monotonic`."""
        self._tracing.record(name, self._parent, since_s, until_s, request_id=self._request_id)
