"""What answers a request: token ids in, token events out.

The router implements `Backend`, and so can one worker alone. Text never crosses this seam, except
stop strings on the way in and the name of the one that matched on the way out.
"""

import enum
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from baton.api.errors import ApiError
from baton.api.sampling import SamplingParams


@dataclass(frozen=True)
class GenerateRequest:
    """One answer to one prompt. Made by this room; attempts are the backend's business."""

    request_id: str  # 32 hex digits, unique
    prompt_ids: tuple[int, ...]  # not empty, inside the vocabulary and the context
    sampling: SamplingParams
    client_id: str | None = None  # the caller's own id: a label for logs
    priority: int = 0  # the larger goes first wherever requests wait
    routed_dp_rank: int | None = None  # begin it on this decode rank, while it has not left


@dataclass(frozen=True)
class TokenLogprob:
    """One token's log probability under the raw logits, the best alternatives, best first, and
    those of the request's `logprob_token_ids`."""

    token_id: int
    logprob: float | None  # None: a prompt's first token, which nothing predicted
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()
    asked_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True)
class PromptLogprobs:
    """Of the prompt's tokens from position `start` on; a long prompt's come in several."""

    start: int
    tokens: tuple[TokenLogprob, ...]


class TokenEvent(NamedTuple):
    """The next output tokens. `logprobs` has one entry a token, or none where not asked for. A
    tuple: one is made for each token."""

    first_index: int  # output position of token_ids[0]; equals the number given before
    token_ids: tuple[int, ...]  # empty in an event that only brings prompt logprobs
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: PromptLogprobs | None = None


class FinishReason(enum.StrEnum):
    """Why an answer ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0  # of the prompt, not computed again


@dataclass(frozen=True)
class Timings:
    """Durations in microseconds; proto/common.proto says where each is measured."""

    router_queue_us: int = 0
    prefill_queue_us: int = 0
    prefill_us: int = 0
    delivery_us: int = 0
    network_us: int = 0
    transfer_us: int = 0
    decode_wait_us: int = 0
    first_decode_step_us: int = 0
    ttft_us: int = 0
    e2e_us: int = 0
    prefill_to_decode_us: int = 0


@dataclass(frozen=True)
class Finished:
    """The last event of every answer."""

    reason: FinishReason
    stop_token_id: int | None = None  # the token that ended it
    stop_string: str = ""  # the string that ended it
    cut_chars: int = 0  # characters to cut from the end of decode(all output ids)
    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)
    error: ApiError | None = None  # with ERROR and ABORT


@dataclass(frozen=True)
class ModelInfo:
    """What is served."""

    model_id: str  # the name that clients ask for
    max_model_len: int  # prompt and answer together, in tokens
    vocab_size: int  # ids from 0 up to this are legal in a prompt
    created: int = 0  # unix seconds
    root: str = ""  # the folder or hub id it came from


@dataclass(frozen=True)
class Health:
    """Whether a request sent now could be answered, and if not why."""

    ready: bool
    detail: str = ""


class Backend(Protocol):
    """Every method raises `ApiError` and nothing else of its own."""

    def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent | Finished, None]:
        """The answer's events, `Finished` last. Closing the generator early cancels the request."""
        ...

    async def cancel(self, request_id: str) -> None:
        """Stop the request wherever it is; its generator ends with ABORT. Unknown ids: nothing."""
        ...

    async def abort(self, name: str | None) -> int:
        """As `cancel`, for every request whose own id or `client_id` is `name`, or for all where it
        is None. How many were stopped."""
        ...

    async def models(self) -> Sequence[ModelInfo]:
        """At least one; the first is the default."""
        ...

    async def server_info(self) -> Mapping[str, object]:
        """JSON values about workers, memory and settings."""
        ...

    async def health(self) -> Health: ...

    async def flush_cache(self, timeout_s: float) -> None:
        """Empty every prefix cache once idle; DEADLINE_EXCEEDED when that takes longer."""
        ...
