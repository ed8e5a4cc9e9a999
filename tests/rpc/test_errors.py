"""Errors on the wire."""

import pytest
from grpc import StatusCode, aio
from grpc.aio import Metadata

from baton.core.error_codes import ERROR_STATUS, ErrorCode
from baton.core.errors import (
    ApiError,
    BatonError,
    IncompatibleError,
    PeerSilentError,
    RequestError,
    StoppedError,
    TooLargeError,
)
from baton.proto import common_pb2
from baton.rpc.errors import (
    ERROR_METADATA,
    abort,
    error_from_proto,
    error_of,
    error_of_call,
    error_to_proto,
    make_error,
)


@pytest.mark.parametrize("code", ErrorCode)
def test_an_error_survives_the_wire(code: ErrorCode) -> None:
    error = ApiError(code, "what and why", expected="a", actual="b", origin="decode-0")
    back = error_from_proto(error_to_proto(error))
    for name in ("code", "message", "expected", "actual", "origin", "retryable", "replaceable"):
        assert getattr(back, name) == getattr(error, name)


@pytest.mark.parametrize("code", ErrorCode)
def test_what_a_client_reads_on_the_wire_is_the_tables_verdict(code: ErrorCode) -> None:
    assert make_error(code, "d0", "x").retryable == ERROR_STATUS[code].retryable


def test_a_code_that_a_newer_peer_made_up_is_internal() -> None:
    error = common_pb2.Error(message="new")
    error.MergeFromString(b"\x08\x63")  # field 1 = 99
    assert error_from_proto(error).code is ErrorCode.INTERNAL


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (TooLargeError("x"), common_pb2.TOO_LARGE),
        (RequestError("x"), common_pb2.INVALID_REQUEST),
        (IncompatibleError("x", "a", "b"), common_pb2.INCOMPATIBLE),
        (PeerSilentError("x"), common_pb2.UNAVAILABLE),
        (StoppedError("x"), common_pb2.UNAVAILABLE),
        (ApiError(ErrorCode.OVERLOADED, "x", origin="p0"), common_pb2.OVERLOADED),
        (BatonError("x"), common_pb2.INTERNAL),
        (ZeroDivisionError("x"), common_pb2.INTERNAL),
    ],
)
def test_what_was_raised_becomes_the_code_that_fits(raised: Exception, code: int) -> None:
    error = error_of(raised, "d0")
    assert (error.code, error.message) == (code, "x")
    assert error.origin == ("p0" if isinstance(raised, ApiError) else "d0")


def test_the_values_that_differ_travel_too() -> None:
    error = error_of(IncompatibleError("x", "a", "b"), "d0")
    assert (error.expected, error.actual) == ("a", "b")


class Context:
    """A call that records how it was ended."""

    async def abort(
        self, code: StatusCode, details: str, trailing_metadata: tuple[tuple[str, bytes], ...]
    ) -> None:
        raise aio.AioRpcError(code, Metadata(), Metadata(*trailing_metadata), details)


@pytest.mark.parametrize("code", ErrorCode)
async def test_a_call_ends_with_the_status_of_its_error_and_carries_it_whole(
    code: ErrorCode,
) -> None:
    error = make_error(code, "p0", "why")
    with pytest.raises(aio.AioRpcError) as failed:
        await abort(Context(), error)  # type: ignore[arg-type]
    assert failed.value.code().name == ERROR_STATUS[code].grpc
    assert ERROR_METADATA in dict(failed.value.trailing_metadata())
    assert error_of_call(failed.value, "elsewhere") == error


def test_a_call_that_broke_without_a_word_is_unavailable_and_names_the_peer() -> None:
    broken = aio.AioRpcError(StatusCode.CANCELLED, Metadata(), Metadata(), "reset")
    error = error_of_call(broken, "p7")
    assert (error.code, error.origin, error.retryable) == (common_pb2.UNAVAILABLE, "p7", True)
    assert "p7" in error.message and "CANCELLED: reset" in error.message
