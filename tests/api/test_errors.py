"""The one error table."""

import grpc
import pytest

from baton.api.errors import STATUS, ApiError, ErrorCode
from baton.proto import common_pb2


def test_every_code_of_the_contract_is_known_here_and_has_a_status() -> None:
    contract = dict(common_pb2.ErrorCode.items())
    del contract["ERROR_CODE_UNSPECIFIED"]
    assert {code.name: code.value for code in ErrorCode} == contract
    assert set(STATUS) == set(ErrorCode)


@pytest.mark.parametrize("code", ErrorCode)
def test_an_error_survives_the_wire(code: ErrorCode) -> None:
    error = ApiError(code, "what and why", expected="a", actual="b", origin="decode-0")
    back = ApiError.from_proto(error.to_proto())
    for name in ("code", "message", "expected", "actual", "origin", "retryable"):
        assert getattr(back, name) == getattr(error, name)


def test_a_code_that_a_newer_peer_made_up_is_internal() -> None:
    error = common_pb2.Error(message="new")
    error.MergeFromString(b"\x08\x63")  # field 1 = 99
    assert ApiError.from_proto(error).code is ErrorCode.INTERNAL


def test_what_a_retry_may_mend_says_so() -> None:
    assert ApiError(ErrorCode.OVERLOADED, "full").retryable
    assert not ApiError(ErrorCode.INVALID_REQUEST, "bad").retryable
    assert STATUS[ErrorCode.OVERLOADED].http == 429
    assert STATUS[ErrorCode.OVERLOADED].grpc is grpc.StatusCode.RESOURCE_EXHAUSTED
