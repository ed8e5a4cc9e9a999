"""The conversion of the engine's last event of a request to the end of its answer."""

from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.core.finish import Finished, FinishReason, Timings
from baton.engine.request.events import RequestFinished

_NO_TIMINGS = Timings()


def finished_of(event: RequestFinished, origin: str, timings: Timings = _NO_TIMINGS) -> Finished:
    """Return the answer's end. origin: the worker that its error names."""
    return Finished(
        event.end,
        usage=event.usage,
        timings=timings,
        error=_error(event, origin),
    )


def _error(event: RequestFinished, origin: str) -> ApiError | None:
    match event.end.reason:
        case FinishReason.ABORT:
            message = event.error or "the request was cancelled"
            return ApiError(ErrorCode.CANCELLED, message, origin=origin)
        case FinishReason.ERROR:
            message = event.error or "the request failed"
            return ApiError(event.error_code, message, origin=origin)
    return None
