"""The events that the engine reports after a step."""

from dataclasses import dataclass
from typing import NamedTuple

from baton.core.error_codes import ErrorCode
from baton.core.finish import End, Usage
from baton.core.logprobs import PromptLogprobs, TokenLogprob


@dataclass(frozen=True)
class Scheduled:
    """The request's first chunk has been planned (the hand-off asks for its destination now), or
    the first step of one that was adopted."""

    request_id: str
    cached_tokens: int = 0  # prompt tokens that need not be computed
    will_park: bool = False  # a hold request: the KV of the cached tokens may be read now
    cached_kv: int = 0  # prompt tokens whose KV was cached, with or without their state
    cached_host: int = 0  # of the cached tokens, those that the host's tier has spared
    cached_file: int = 0  # of the cached tokens, those that came from files


@dataclass(frozen=True)
class ChunkComputed:
    """KV of prompt tokens [start, end) lies in the request's pages. For held requests only."""

    request_id: str
    start: int
    end: int


@dataclass(frozen=True)
class PromptScored:
    """One chunk's prompt tokens have their log probabilities."""

    request_id: str
    scores: PromptLogprobs


class TokenSampled(NamedTuple):
    """Output token number `index`, counted from 0. A tuple: one is made for each row of a step."""

    request_id: str
    index: int  # type: ignore[assignment]  # hides a method of tuples that nobody misses
    token_id: int
    logprob: TokenLogprob | None


@dataclass(frozen=True)
class PrefillHeld:
    """The whole prompt is computed and the first token sampled; the request waits, its slot and
    pages untouched, until `Engine.release`. For held requests only."""

    request_id: str


@dataclass(frozen=True)
class RequestFinished:
    """The request is over and owns nothing any more.

    error: why, with ERROR and ABORT. error_code: of what kind, with ERROR. state_tokens: of prompt
    and output, how many the prefix cache can resume from: where a next turn may begin.
    """

    request_id: str
    end: End
    usage: Usage
    error: str | None = None
    state_tokens: int = 0
    error_code: ErrorCode = ErrorCode.INTERNAL


Event = Scheduled | ChunkComputed | PromptScored | TokenSampled | PrefillHeld | RequestFinished
