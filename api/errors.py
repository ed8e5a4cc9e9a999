"""Errors as OpenAI's API shows them, and how requests are refused."""

from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError

SHOWN_CHARS = 80
RETRY_AFTER_S = 1.0
"""Sent to clients whose request is refused for load. A place is free as soon as any request ends: a
longer wait would leave it empty, and HTTP's header cannot say a shorter one, in whole seconds."""


def openai_error(error: ApiError) -> dict[str, dict[str, str | None]]:
    """Make the JSON body that OpenAI's API answers with."""
    return {
        "error": {
            "message": error.message,
            "type": error.status.openai_type,
            "param": error.param,
            "code": error.code.value,
        }
    }


def invalid(param: str, message: str, *, expected: str = "", actual: object = None) -> ApiError:
    """Make an INVALID_REQUEST about one field."""
    shown = "" if actual is None else shorten(repr(actual))
    return ApiError(
        ErrorCode.INVALID_REQUEST, message, param=param, expected=expected, actual=shown
    )


def too_many(code: ErrorCode, found: str, most: str) -> ApiError:
    """Make an error of a server that is at a limit. found: what there is. most: what may be."""
    return ApiError(
        code,
        f"{found}; send it again later",
        expected=f"at most {most}",
        retry_after_s=RETRY_AFTER_S,
    )


def refused(param: str, message: str) -> ApiError:
    """Make an INVALID_REQUEST about a field that is well typed but cannot be served."""
    return ApiError(ErrorCode.INVALID_REQUEST, message, param=param)


def shorten(text: str) -> str:
    """Cut a value to `SHOWN_CHARS` characters: a megabyte sent by mistake must not come back."""
    return text if len(text) <= SHOWN_CHARS else f"{text[: SHOWN_CHARS - 1]}…"
