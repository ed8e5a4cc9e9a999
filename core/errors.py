"""The error tree of Baton: every exception that it raises on purpose.

Each class has one code; `core/error_codes.py` maps each code to gRPC and HTTP.
A room's own errors are defined in that room (named in brackets) and inherit from this tree.

BatonError                     INTERNAL
├── ConfigError                INTERNAL           a model folder or an option that cannot work
│   ├── WeightsError           INTERNAL           a checkpoint's tensors are wrong
│   └── TokenizerFileError     INTERNAL           tokenizer files are missing or bad [text]
├── InvariantError             INTERNAL           bookkeeping does not balance: a fault of ours
│   ├── RankError              INTERNAL           a rank of a replica is lost, hangs or has failed
│   └── DeviceLostError        INTERNAL           a GPU that takes no more work from this process
├── StoppedError               UNAVAILABLE        the engine's loop has ended, or the process ends
├── PeerLostError              UNAVAILABLE        a peer went away or is not who it was
│   └── PeerSilentError        UNAVAILABLE        a peer was silent for its lease
├── IncompatibleError          INCOMPATIBLE       two processes differ in protocol or layout
├── RequestError               INVALID_REQUEST    one request is wrong
│   └── TooLargeError          TOO_LARGE          a request that cannot fit even alone
├── ApiError                   chosen by whoever raises it; what clients and peers are told
│   └── StoppingError          UNAVAILABLE        a request to a server that stops
├── TextError                  INVALID_REQUEST    [text]
│   ├── EncodingError          INVALID_REQUEST    text without token ids, or ids without text
│   ├── ChatTemplateError      INVALID_REQUEST    messages that cannot be rendered
│   ├── StopRegexError         INVALID_REQUEST    an unusable stop_regex
│   ├── GrammarError           INVALID_REQUEST    an unusable grammar, or an answer that left it
│   ├── SchemaError            INVALID_REQUEST    a JSON schema that is none, or too large
│   ├── PatternError           INVALID_REQUEST    a schema's pattern that grammars cannot have
│   └── GrammarBusyError       OVERLOADED         too many grammars at once
├── DamagedFileError           DATA_LOSS          a file of a prefix has other bytes [engine]
├── KeptFileError              INTERNAL           a file of a prefix could not be removed [engine]
├── TransferError              INTERNAL           [transfer]
│   ├── MoveError              INTERNAL           a hand-off made a move that its table lacks
│   ├── TicketError            UNAVAILABLE        a ticket that is unknown, outdated or closed
│   ├── FrameError             INTERNAL           malformed bytes, or bytes outside their ticket
│   ├── ChecksumError          DATA_LOSS          a segment arrived with other bytes
│   └── ChannelError           UNAVAILABLE        the peer was lost, or did not answer in time
├── ClientGone                 CANCELLED          the client closed its connection [api]
├── DeployError                INTERNAL           [deploy]
│   ├── StartError             INTERNAL           a cluster that cannot start
│   │   └── ConfigFileError    INTERNAL           a file of settings that cannot be used
│   ├── EngineLostError        UNAVAILABLE        the engine of a worker by hand has stopped
│   ├── RayLostError           UNAVAILABLE        Ray has ended under a running cluster
│   ├── ScaleError             INVALID_REQUEST    a cluster that cannot change as was asked
│   ├── ControlError           INVALID_REQUEST    a request that a cluster cannot take
│   ├── NotRunning             UNAVAILABLE        no cluster answers where one was looked for
│   │   └── RouterRefused      UNAVAILABLE        a router answers with an error
│   └── ProbeError             INTERNAL           a part of the machine fails when it is tried
├── BuildError                 INTERNAL           native kernels cannot be compiled [kernels]
├── NotRecordableError         INTERNAL           a model step that cannot be recorded [kernels]
├── PeerError                  INTERNAL           a peer to compare with cannot run [bench]
└── RequestFailed              UNAVAILABLE        a server did not answer a benchmark [bench]
"""

from baton.core.error_codes import ERROR_STATUS, ErrorCode, ErrorStatus


class BatonError(Exception):
    """The base of every error that Baton raises on purpose.

    The message says what was wrong and what to do. `expected` and `actual` are the two values that
    differ, as text; both are empty where the error is not about a value.
    """

    code: ErrorCode = ErrorCode.INTERNAL

    def __init__(self, message: str = "", expected: str = "", actual: str = "") -> None:
        super().__init__(message)
        self.expected = expected
        self.actual = actual

    @property
    def message(self) -> str:
        return str(self)

    @property
    def status(self) -> ErrorStatus:
        """The row of the table for this error's code."""
        return ERROR_STATUS[self.code]


class ConfigError(BatonError):
    """A model folder or an option that cannot work: says which, and what would. Raised at start."""


class WeightsError(ConfigError):
    """A checkpoint's tensors are missing, extra, misshapen or cut short."""


class InvariantError(BatonError):
    """Bookkeeping of Baton's own that does not balance."""


class RankError(InvariantError):
    """A rank of a replica is lost, hangs or has failed: the engine of the replica must end."""


class DeviceLostError(InvariantError):
    """A GPU that takes no more work from this process: an illegal access or a hardware fault has
    ended its context, so that every later call fails too.
    """


class StoppedError(BatonError):
    """The engine's loop has ended, or the process is about to: it accepts nothing more."""

    code = ErrorCode.UNAVAILABLE


class PeerLostError(BatonError):
    """A peer went away, restarted, or did not keep to the protocol of its stream."""

    code = ErrorCode.UNAVAILABLE


class PeerSilentError(PeerLostError):
    """A peer was silent for its lease."""


class IncompatibleError(BatonError):
    """Two processes differ in protocol version or memory layout: names every difference."""

    code = ErrorCode.INCOMPATIBLE


class RequestError(BatonError):
    """One request is wrong; the process goes on. `field` names the offending argument."""

    code = ErrorCode.INVALID_REQUEST

    def __init__(
        self, message: str, field: str | None = None, expected: str = "", actual: str = ""
    ) -> None:
        super().__init__(message, expected, actual)
        self.field = field


class TooLargeError(RequestError):
    """A request that could not fit even alone."""

    code = ErrorCode.TOO_LARGE


ROUTER = "router"
"""The `origin` of what a router finds wrong itself."""
RETRY_S = 1.0
"""The time after which a client may try again at another server, or at the next start of this."""


class ApiError(BatonError):
    """A failure as clients and peers are told of it, with a code chosen where it is raised.

    `param` names the request's field; `origin` the worker that failed, or ROUTER;
    `retry_after_s` is for OVERLOADED and UNAVAILABLE. `openai_code` is OpenAI's name of the failure
    where its clients look for a narrower one than `code`.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        param: str | None = None,
        expected: str = "",
        actual: str = "",
        origin: str = ROUTER,
        retry_after_s: float | None = None,
        openai_code: str | None = None,
    ) -> None:
        super().__init__(message, expected, actual)
        self.code = code
        self.openai_code = openai_code
        self.param = param
        self.origin = origin
        self.retry_after_s = retry_after_s

    @property
    def retryable(self) -> bool:
        """A client may send the same request again."""
        return self.status.retryable

    @property
    def replaceable(self) -> bool:
        """The cluster may try the request on another worker."""
        return self.status.replaceable


class StoppingError(ApiError):
    """The refusal of a server that stops, by which clients let go of their connections to it."""

    code = ErrorCode.UNAVAILABLE

    def __init__(self, message: str, origin: str = ROUTER) -> None:
        super().__init__(ErrorCode.UNAVAILABLE, message, origin=origin, retry_after_s=RETRY_S)
