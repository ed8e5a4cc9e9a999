"""Reading a request's body within a bound, and the labels that came in its headers."""

from starlette.requests import Request

from baton.api.errors import ApiError, ErrorCode
from baton.api.requests import RequestLabels
from baton.api.schema import SamplingBody


async def read_body(request: Request, limit: int) -> bytes:
    """All of it; TOO_LARGE as soon as it is known to pass `limit` bytes."""
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > limit:
        raise _too_large(limit)
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
    return b"".join(parts)


def labels_of(request: Request, body: SamplingBody) -> RequestLabels:
    """The caller's own id is the header X-Request-Id, else the body's `user`."""
    client_id = request.headers.get("x-request-id") or body.user
    return RequestLabels(client_id, body.priority or 0, body.routed_dp_rank)


def _too_large(limit: int) -> ApiError:
    return ApiError(
        ErrorCode.TOO_LARGE,
        f"the body is larger than {limit} bytes; send a shorter prompt",
        expected=f"at most {limit} bytes",
    )
