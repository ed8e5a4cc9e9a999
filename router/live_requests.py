"""The requests that have not ended, and the bound on how many there may be."""

from dataclasses import dataclass

from baton.api.backend import FinishReason, GenerateRequest
from baton.api.errors import ApiError, ErrorCode
from baton.router.answer_stream import AnswerStream
from baton.router.request_times import RequestTimes


@dataclass(eq=False)
class LiveRequest:
    """One request, from its arrival until its client has been told how it ended."""

    request: GenerateRequest
    times: RequestTimes
    outcome: str = "cancelled"  # set at the end; stays so when the client goes away
    refusal: ApiError | None = None  # set by `stop`
    stream: AnswerStream | None = None  # set when it is dispatched

    def stop(self, error: ApiError, reason: FinishReason) -> None:
        """End it from this side, wherever it is."""
        self.refusal = error
        if self.stream is not None:
            self.stream.fail(error, reason)


class LiveRequests:
    """At most `max_queued` more than the decode ranks run at once.

    Requests do not wait here for a free slot: the ranks queue them, so that prefill runs ahead.
    """

    def __init__(self, max_queued: int, retry_after_s: float) -> None:
        self._max_queued = max_queued
        self._retry_after_s = retry_after_s
        self._live: dict[str, LiveRequest] = {}
        self.closing = False
        """Set when the router stops: nothing more is admitted."""

    def __len__(self) -> int:
        return len(self._live)

    def get(self, request_id: str) -> LiveRequest | None:
        return self._live.get(request_id)

    def named(self, name: str | None) -> list[LiveRequest]:
        """Those whose own id or client's id is `name`; all where it is None."""
        live = self._live.values()
        return [
            each
            for each in live
            if name is None or name in (each.request.request_id, each.request.client_id)
        ]

    def admit(self, request: GenerateRequest, now: float, capacity: int) -> LiveRequest:
        """Raises UNAVAILABLE when closing, OVERLOADED past the bound.

        capacity: requests that the ranks run at once, as of now.
        """
        self.check_open()
        bound = capacity + self._max_queued
        if len(self._live) >= bound:
            raise ApiError(
                ErrorCode.OVERLOADED,
                f"{len(self._live)} requests are here already; send it again later",
                expected=f"fewer than {bound}",
                actual=str(len(self._live)),
                retry_after_s=self._retry_after_s,
            )
        live = LiveRequest(request, RequestTimes(now))
        self._live[request.request_id] = live
        return live

    def check_open(self) -> None:
        """Raises UNAVAILABLE when closing."""
        if self.closing:
            raise ApiError(ErrorCode.UNAVAILABLE, "the router is stopping; ask another one")

    def remove(self, live: LiveRequest) -> None:
        del self._live[live.request.request_id]
