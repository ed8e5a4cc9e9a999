"""Errors as OpenAI's clients read them."""

import pytest

from baton.api.errors import invalid, openai_error, shorten
from baton.core.error_codes import ERROR_STATUS, ErrorCode
from baton.core.errors import ApiError


@pytest.mark.parametrize("code", ErrorCode)
def test_an_error_has_openais_form(code: ErrorCode) -> None:
    assert openai_error(ApiError(code, "why", param="top_p")) == {
        "error": {
            "message": "why",
            "type": ERROR_STATUS[code].openai_type,
            "param": "top_p",
            "code": code.name.lower(),
        }
    }


def test_what_a_retry_may_mend_says_so() -> None:
    assert ApiError(ErrorCode.OVERLOADED, "full").retryable
    assert not ApiError(ErrorCode.INVALID_REQUEST, "bad").retryable
    assert ERROR_STATUS[ErrorCode.OVERLOADED].http == 429
    assert ERROR_STATUS[ErrorCode.OVERLOADED].grpc == "RESOURCE_EXHAUSTED"


def test_a_refusal_shows_a_bounded_part_of_the_value() -> None:
    error = invalid("seed", "bad", actual="x" * 1000)
    assert error.code is ErrorCode.INVALID_REQUEST and error.param == "seed"
    assert len(error.actual) == len(shorten("y" * 100)) == 80
