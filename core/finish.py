"""The end of an answer: its reason, its numbers of tokens, its durations."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from baton.core.drafts import NO_DRAFTS, DraftUsage
from baton.core.errors import ApiError


class FinishReason(StrEnum):
    """A reason for an answer to end."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True)
class Usage:
    """Numbers of tokens of one request."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0  # of the prompt, not computed again
    cached_host_tokens: int = 0  # of those, the ones that the host's tier has spared
    cached_file_tokens: int = 0  # of the cached ones, those that came from files
    # Says how the answer was computed, not what it is.
    drafts: DraftUsage = field(default=NO_DRAFTS, compare=False)


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
class End:
    """The reason why an answer's tokens ended, and what is cut from their text."""

    reason: FinishReason
    stop_token_id: int | None = None  # the token that ended it
    stop_string: str = ""  # the string that ended it
    cut_chars: int = 0  # characters to cut from the end of the text of all output ids


@dataclass(frozen=True)
class Finished:
    """The last event of an answer, for its client."""

    end: End
    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)
    error: ApiError | None = None  # with ERROR and ABORT
    # JSON values: why the router placed the request as it did. None: nobody asked.
    explanation: Mapping[str, object] | None = field(default=None, repr=False)
    # The mean length by which drafts are accepted at random, so that the answer is not the model's;
    # 0: it is.
    synthetic_acceptance: float = 0.0
    # Of the completion, up to the end of its reasoning. Counted where its text is read.
    reasoning_tokens: int = 0


T = TypeVar("T", Usage, Timings, Finished)


def altered(value: T, **fields: Any) -> T:
    """Return a value with other values of these fields. Raises TypeError for a name that is none.

    `dataclasses.replace` takes five times as long, and every answer's end is altered three times.
    """
    if not fields.keys() <= value.__dict__.keys():
        unknown = sorted(fields.keys() - value.__dict__.keys())
        raise TypeError(f"{type(value).__name__} has no {unknown}")
    made = object.__new__(type(value))
    made.__dict__.update(value.__dict__, **fields)
    return made
