"""The codes of errors, and the one table of what each becomes on each protocol."""

from dataclasses import dataclass
from enum import StrEnum


class ErrorCode(StrEnum):
    """The kinds of failure that a client or a peer can tell apart.

    The names are those of `ErrorCode` in proto/common.proto, which says what each means; the
    values are what OpenAI clients read in `error.code`.
    """

    INVALID_REQUEST = "invalid_request"
    NOT_FOUND = "not_found"
    TOO_LARGE = "too_large"
    OVERLOADED = "overloaded"
    CANCELLED = "cancelled"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    UNAVAILABLE = "unavailable"
    INCOMPATIBLE = "incompatible"
    DATA_LOSS = "data_loss"
    INTERNAL = "internal"
    UNAUTHENTICATED = "unauthenticated"
    PERMISSION_DENIED = "permission_denied"
    CONFLICT = "conflict"


@dataclass(frozen=True)
class ErrorStatus:
    """One row of the table: a code as the protocols and the cluster see it.

    `retryable` and `replaceable` answer different questions. A client that sends an INTERNAL
    failure again would most likely meet the same fault, after the cluster has already tried other
    workers; so INTERNAL is not retryable. Inside the cluster the fault may be one worker's alone,
    so the next worker gets its attempt; the number of attempts is bounded.
    """

    grpc: str  # the name of the grpc.StatusCode
    http: int
    openai_type: str
    retryable: bool  # a client may send the same request again, later
    replaceable: bool  # the cluster may try the request on another worker at once


# code, gRPC, HTTP, OpenAI's type, retryable, replaceable
_ROWS = (
    (ErrorCode.INVALID_REQUEST, "INVALID_ARGUMENT", 400, "invalid_request_error", False, False),
    (ErrorCode.NOT_FOUND, "NOT_FOUND", 404, "invalid_request_error", False, False),
    (ErrorCode.TOO_LARGE, "INVALID_ARGUMENT", 413, "invalid_request_error", False, False),
    (ErrorCode.OVERLOADED, "RESOURCE_EXHAUSTED", 429, "rate_limit_error", True, True),
    # 499 is nginx's "client closed request"; no client reads it.
    (ErrorCode.CANCELLED, "CANCELLED", 499, "cancelled", False, False),
    (ErrorCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED", 504, "timeout_error", True, True),
    (ErrorCode.UNAVAILABLE, "UNAVAILABLE", 503, "service_unavailable_error", True, True),
    # Another worker may have the layout that this one lacks.
    (ErrorCode.INCOMPATIBLE, "FAILED_PRECONDITION", 500, "server_error", False, True),
    (ErrorCode.DATA_LOSS, "DATA_LOSS", 500, "server_error", True, True),
    (ErrorCode.INTERNAL, "INTERNAL", 500, "server_error", False, True),
    (ErrorCode.UNAUTHENTICATED, "UNAUTHENTICATED", 401, "authentication_error", False, False),
    (ErrorCode.PERMISSION_DENIED, "PERMISSION_DENIED", 403, "permission_error", False, False),
    (ErrorCode.CONFLICT, "ABORTED", 409, "conflict_error", False, False),
)
ERROR_STATUS = {
    code: ErrorStatus(grpc, http, kind, retryable, replaceable)
    for code, grpc, http, kind, retryable, replaceable in _ROWS
}
