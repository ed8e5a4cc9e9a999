"""Errors as OpenAI's and Anthropic's APIs show them, and how requests are refused."""

from typing import Any

from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError

SHOWN_CHARS = 80
RETRY_AFTER_S = 1.0
"""Sent to clients whose request is refused for load. A place is free as soon as any request ends: a
longer wait would leave it empty, and HTTP's header cannot say a shorter one, in whole seconds."""


ANTHROPIC_PATH = "/v1/messages"
"""Endpoints at this path and below speak Anthropic's API, errors too."""

_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""The type of an error by HTTP status; any other is `api_error`."""


def error_body(error: ApiError, path: str = "") -> dict[str, Any]:
    """Make the JSON body of an error in the form of the API that `path` belongs to."""
    if path == ANTHROPIC_PATH or path.startswith(f"{ANTHROPIC_PATH}/"):
        return anthropic_error(error)
    return openai_error(error)


def anthropic_error(error: ApiError) -> dict[str, Any]:
    """Make the JSON body that Anthropic's API answers with."""
    kind = _ANTHROPIC_TYPES.get(error.status.http, "api_error")
    shown: dict[str, Any] = {"type": kind, "message": error.message}
    if error.param == "thread":
        # The SDK's runner of tools asks for a thread, and goes on without one if this is said.
        shown["details"] = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    return {"type": "error", "error": shown}


def openai_error(error: ApiError) -> dict[str, dict[str, str | None]]:
    """Make the JSON body that OpenAI's API answers with."""
    return {
        "error": {
            "message": error.message,
            "type": error.status.openai_type,
            "param": error.param,
            "code": error.openai_code or error.code.value,
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
