"""The one error that clients meet, and the one table of what it becomes on each protocol.

`ApiError` is raised by this room and by every `Backend`; its codes are those of `baton.v1.Error`.
"""

import enum
from dataclasses import dataclass

import grpc

from baton.proto import common_pb2


class ErrorCode(enum.IntEnum):
    """Value for value the ErrorCode of proto/common.proto."""

    INVALID_REQUEST = common_pb2.INVALID_REQUEST
    NOT_FOUND = common_pb2.NOT_FOUND
    TOO_LARGE = common_pb2.TOO_LARGE
    OVERLOADED = common_pb2.OVERLOADED
    CANCELLED = common_pb2.CANCELLED
    DEADLINE_EXCEEDED = common_pb2.DEADLINE_EXCEEDED
    UNAVAILABLE = common_pb2.UNAVAILABLE
    INCOMPATIBLE = common_pb2.INCOMPATIBLE
    DATA_LOSS = common_pb2.DATA_LOSS
    INTERNAL = common_pb2.INTERNAL


@dataclass(frozen=True)
class Status:
    """What one code is called elsewhere."""

    grpc: grpc.StatusCode
    http: int
    openai_type: str
    retryable: bool = False


STATUS: dict[ErrorCode, Status] = {
    ErrorCode.INVALID_REQUEST: Status(
        grpc.StatusCode.INVALID_ARGUMENT, 400, "invalid_request_error"
    ),
    ErrorCode.NOT_FOUND: Status(grpc.StatusCode.NOT_FOUND, 404, "invalid_request_error"),
    ErrorCode.TOO_LARGE: Status(grpc.StatusCode.INVALID_ARGUMENT, 413, "invalid_request_error"),
    ErrorCode.OVERLOADED: Status(
        grpc.StatusCode.RESOURCE_EXHAUSTED, 429, "rate_limit_error", retryable=True
    ),
    # 499 is nginx's "client closed request"; no client reads it.
    ErrorCode.CANCELLED: Status(grpc.StatusCode.CANCELLED, 499, "cancelled"),
    ErrorCode.DEADLINE_EXCEEDED: Status(
        grpc.StatusCode.DEADLINE_EXCEEDED, 504, "timeout_error", retryable=True
    ),
    ErrorCode.UNAVAILABLE: Status(
        grpc.StatusCode.UNAVAILABLE, 503, "service_unavailable_error", retryable=True
    ),
    ErrorCode.INCOMPATIBLE: Status(grpc.StatusCode.FAILED_PRECONDITION, 500, "server_error"),
    ErrorCode.DATA_LOSS: Status(grpc.StatusCode.DATA_LOSS, 500, "server_error", retryable=True),
    ErrorCode.INTERNAL: Status(grpc.StatusCode.INTERNAL, 500, "server_error"),
}


class ApiError(Exception):
    """Says what was wrong, what was expected and what to do.

    `param` names the request's field; `retry_after_s` is for OVERLOADED and UNAVAILABLE;
    `retryable` follows from the code unless it is given.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        param: str | None = None,
        expected: str = "",
        actual: str = "",
        origin: str = "router",
        retryable: bool | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.expected = expected
        self.actual = actual
        self.origin = origin
        self.retryable = STATUS[code].retryable if retryable is None else retryable
        self.retry_after_s = retry_after_s

    @property
    def status(self) -> Status:
        return STATUS[self.code]

    def to_openai(self) -> dict[str, dict[str, str | None]]:
        """The JSON body of OpenAI's API."""
        return {
            "error": {
                "message": self.message,
                "type": self.status.openai_type,
                "param": self.param,
                "code": self.code.name.lower(),
            }
        }

    def to_proto(self) -> common_pb2.Error:
        return common_pb2.Error(
            code=common_pb2.ErrorCode.Name(self.code),
            retryable=self.retryable,
            origin=self.origin,
            message=self.message,
            expected=self.expected,
            actual=self.actual,
        )

    @classmethod
    def from_proto(cls, error: common_pb2.Error) -> "ApiError":
        """A code that a newer peer made up is INTERNAL here."""
        number = int(error.code)
        known = number in [int(code) for code in ErrorCode]
        return cls(
            ErrorCode(number) if known else ErrorCode.INTERNAL,
            error.message,
            expected=error.expected,
            actual=error.actual,
            origin=error.origin,
            retryable=error.retryable,
        )


def invalid(param: str, message: str, *, expected: str = "", actual: object = None) -> ApiError:
    """INVALID_REQUEST about one field."""
    shown = "" if actual is None else shorten(repr(actual))
    return ApiError(
        ErrorCode.INVALID_REQUEST, message, param=param, expected=expected, actual=shown
    )


def shorten(text: str, limit: int = 80) -> str:
    """A value as an error shows it: a megabyte sent by mistake must not come back."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
