"""The spans of one request on the router."""

from collections.abc import Sequence

from baton.core.finish import Finished
from baton.proto.common_pb2 import TraceContext as TraceContextMessage
from baton.router.cluster_view.worker_table import Worker
from baton.rpc.tracing import TraceContext, TraceSpan, Tracing


class RequestTrace:
    """`answer`, from arrival to end, and in it for each attempt `queue` and `place`.

    `queue` is the wait for a placement. `place` lasts as long as the request is with the rank: the
    spans of the rank and of its prefill workers are its children.
    """

    def __init__(
        self, tracing: Tracing, parent: TraceContext | None, request_id: str, arrived_s: float
    ) -> None:
        """arrived_s: by `time.monotonic`."""
        self._tracing = tracing
        self._answer = tracing.begin("answer", parent, since_s=arrived_s, request_id=request_id)
        self._waits_since_s = arrived_s
        self._place: TraceSpan | None = None

    def placed(
        self, now_s: float, attempt: int, rank: Worker, prefills: Sequence[Worker]
    ) -> TraceContextMessage:
        """End the wait, and return what the rank is sent."""
        parent = self._answer.context
        self._tracing.record("queue", parent, self._waits_since_s, now_s, attempt=attempt)
        names = ",".join(worker.worker_id for worker in prefills)
        self._place = self._tracing.begin(
            "place", parent, attempt=attempt, rank=rank.worker_id, prefill_workers=names
        )
        context = self._place.context
        return TraceContextMessage(traceparent=context.traceparent, tracestate=context.tracestate)

    def left(self, now_s: float, error: str = "") -> None:
        """Note that the rank has done with the request. error: why another one goes on."""
        self._waits_since_s = now_s
        if self._place is not None:
            self._place.end(error)
            self._place = None

    def finished(self, event: Finished) -> None:
        """Note how the answer ended. `ended` follows."""
        self.left(self._waits_since_s)
        self._answer.end(
            "" if event.error is None else event.error.message,
            reason=event.end.reason.value,
            prompt_tokens=event.usage.prompt_tokens,
            cached_tokens=event.usage.cached_tokens,
            output_tokens=event.usage.completion_tokens,
        )

    def ended(self, outcome: str) -> None:
        """End what has not ended. outcome: why the request is over without a finish."""
        self.left(self._waits_since_s, outcome)
        self._answer.end(outcome)
