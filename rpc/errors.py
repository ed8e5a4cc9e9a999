"""Errors of `core` to `baton.v1.Error` and back, and both through gRPC's trailing metadata."""

import math
from collections.abc import Iterable, Mapping

import grpc
from grpc import aio

from baton.core.error_codes import ERROR_STATUS, ErrorCode
from baton.core.errors import ApiError, BatonError
from baton.proto import common_pb2

RETRY_AFTER, PUSHBACK = "retry-after", "grpc-retry-pushback-ms"
"""The keys under which a refusal for load says when to try again: as HTTP's header, in seconds, and
as clients of gRPC with a retry policy read it (gRPC's proposal A6)."""
ERROR_METADATA = "baton-error-bin"
"""The key of the trailing metadata under which a failed call carries its serialised Error."""


def make_error(code: ErrorCode, origin: str, message: str) -> common_pb2.Error:
    """Make an Error. `retryable` follows from the code."""
    return common_pb2.Error(
        code=code.name,
        retryable=ERROR_STATUS[code].retryable,
        origin=origin,
        message=message,
    )


def error_of(raised: BaseException, origin: str) -> common_pb2.Error:
    """Describe what was raised to the other side.

    origin: who failed, unless `raised` is an ApiError, which says so itself. An exception that is
    not in the tree of `core` is INTERNAL.
    """
    code = ErrorCode.INTERNAL
    if isinstance(raised, BatonError):
        code = raised.code
    if isinstance(raised, ApiError):
        origin = raised.origin
    error = make_error(code, origin, str(raised) or type(raised).__name__)
    if isinstance(raised, BatonError):
        error.expected, error.actual = raised.expected, raised.actual
    return error


def error_to_proto(error: ApiError) -> common_pb2.Error:
    """Convert an error that names its own origin."""
    return error_of(error, error.origin)


def error_from_proto(error: common_pb2.Error) -> ApiError:
    """Convert back. A code that only a newer peer knows is INTERNAL here."""
    return ApiError(
        code_from_proto(error.code),
        error.message,
        expected=error.expected,
        actual=error.actual,
        origin=error.origin,
    )


def code_from_proto(code: common_pb2.ErrorCode) -> ErrorCode:
    """Convert by name. A code that only a newer peer knows is INTERNAL here."""
    known = {common_pb2.ErrorCode.Value(each.name): each for each in ErrorCode}
    return known.get(code, ErrorCode.INTERNAL)


async def abort(
    context: aio.ServicerContext,
    error: common_pb2.Error,
    more: Iterable[tuple[str, str]] = (),
) -> None:
    """End the call with the status of the error's code; `error_of_call` reads it whole.

    more: further trailing metadata. Always raises.
    """
    status = grpc.StatusCode[ERROR_STATUS[code_from_proto(error.code)].grpc]
    metadata = ((ERROR_METADATA, error.SerializeToString()), *more)
    await context.abort(status, error.message, trailing_metadata=metadata)


async def refuse(
    context: aio.ServicerContext, error: ApiError, headers: Mapping[str, str] | None = None
) -> None:
    """End a client's call with its error, and say when to try again where the error does.

    headers: those that a reply over HTTP would have. Always raises.
    """
    more = dict(headers or {})
    if error.retry_after_s is not None:
        more[RETRY_AFTER] = str(retry_after(error.retry_after_s))
        more[PUSHBACK] = str(math.ceil(1000 * error.retry_after_s))
    await abort(context, error_to_proto(error), more.items())


def retry_after(seconds: float) -> int:
    """Return what the header `retry-after` says: whole seconds, at least one."""
    return max(1, math.ceil(seconds))


def error_of_call(failed: aio.AioRpcError, peer: str) -> common_pb2.Error:
    """Read the Error that the peer ended the call with; UNAVAILABLE if the connection broke."""
    for key, value in failed.trailing_metadata() or ():
        if key == ERROR_METADATA:
            return common_pb2.Error.FromString(value)
    message = f"the stream to {peer} broke: {failed.code().name}: {failed.details()}"
    return make_error(ErrorCode.UNAVAILABLE, peer, message)
