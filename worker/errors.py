"""Exceptions to `baton.v1.Error`, and back through gRPC's trailing metadata."""

import grpc
from grpc import aio

from baton.engine.errors import BatonError, RequestError, TooLargeError
from baton.proto import common_pb2
from baton.text.errors import GrammarBusyError, GrammarError
from baton.transfer.errors import (
    ChannelError,
    ChecksumError,
    FingerprintError,
    TicketError,
    TransferError,
)

METADATA_KEY = "baton-error-bin"


class WorkerError(BatonError):
    """Carries the `Error` that goes to the peer, or came from it."""

    def __init__(self, error: common_pb2.Error) -> None:
        super().__init__(error.message)
        self.error = error


class PeerSilentError(BatonError):
    """Nothing was heard from a peer for its lease."""


def make_error(
    code: common_pb2.ErrorCode, origin: str, message: str, retryable: bool = False
) -> common_pb2.Error:
    return common_pb2.Error(code=code, origin=origin, message=message, retryable=retryable)


_CODES: tuple[tuple[type[Exception], common_pb2.ErrorCode, bool], ...] = (
    # (what was raised, its code, whether another attempt may go better); the first that fits
    (TooLargeError, common_pb2.TOO_LARGE, False),
    (RequestError, common_pb2.INVALID_REQUEST, False),
    (GrammarBusyError, common_pb2.OVERLOADED, True),
    (GrammarError, common_pb2.INVALID_REQUEST, False),
    (FingerprintError, common_pb2.INCOMPATIBLE, False),
    (ChecksumError, common_pb2.DATA_LOSS, True),
    (TicketError, common_pb2.UNAVAILABLE, True),
    (ChannelError, common_pb2.UNAVAILABLE, True),
    (PeerSilentError, common_pb2.UNAVAILABLE, True),
)


def error_of(raised: BaseException, origin: str) -> common_pb2.Error:
    """What to tell the other side. An exception that no line above knows is INTERNAL."""
    if isinstance(raised, WorkerError):
        return raised.error
    code, retryable = common_pb2.INTERNAL, True
    for kind, known, again in _CODES:
        if isinstance(raised, kind):
            code, retryable = known, again
            break
    error = make_error(code, origin, str(raised) or type(raised).__name__, retryable)
    if isinstance(raised, TransferError):
        error.expected, error.actual = raised.expected, raised.actual
    return error


async def abort(
    context: aio.ServicerContext, code: grpc.StatusCode, error: common_pb2.Error
) -> None:
    """End the call; the peer's `error_of_call` gives it `error` whole. Always raises."""
    metadata = ((METADATA_KEY, error.SerializeToString()),)
    await context.abort(code, error.message, trailing_metadata=metadata)


def error_of_call(failed: aio.AioRpcError, peer: str) -> common_pb2.Error:
    """The `Error` that the peer ended the call with, or UNAVAILABLE where it just went."""
    for key, value in failed.trailing_metadata() or ():
        if key == METADATA_KEY:
            return common_pb2.Error.FromString(value)
    return make_error(
        common_pb2.UNAVAILABLE,
        peer,
        f"the stream to {peer} broke: {failed.code().name}: {failed.details()}",
        retryable=True,
    )
