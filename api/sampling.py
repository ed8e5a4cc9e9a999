"""How an answer is drawn, checked before it goes anywhere."""

import hashlib
import math
from dataclasses import dataclass

from baton.api.errors import invalid
from baton.text.grammar import Grammar

MAX_SEED = 2**64 - 1
MAX_STOPS = 16
MAX_STOP_CHARS = 256
MAX_STOP_IDS = 128
MAX_TOP_LOGPROBS = 100
MAX_COUNT = 2**31 - 1
"""Of tokens, and of top_k: a number of tokens fits a signed 32-bit field everywhere."""


@dataclass(frozen=True)
class SamplingParams:
    """Set by the client, or by the defaults here; never invalid once made.

    `seed` None: the backend draws one. `logprobs` n: each output token's own log probability and
    the top n; `prompt_logprobs_start`, if not None, asks for the prompt's from that position on,
    with the top `prompt_logprobs`; `logprob_token_ids` are asked about in both. `grammar` is
    what the answer must look like. Several answers (`n`) are several requests, so not here.
    """

    temperature: float = 1.0  # 0: greedy
    top_k: int = 0  # 0 or -1: off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    max_tokens: int = 16
    logprobs: int | None = None
    prompt_logprobs_start: int | None = None
    prompt_logprobs: int = 0
    logprob_token_ids: tuple[int, ...] = ()
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        self.validate()

    def validate(self) -> None:
        """Raise `ApiError` INVALID_REQUEST naming the field, its value and its range."""
        _number("temperature", self.temperature, 0, 100)
        # Below 1e-6 a float32 sum of probabilities cannot tell top_p from zero.
        _number("top_p", self.top_p, 1e-6, 1)
        _number("min_p", self.min_p, 0, 1)
        _number("repetition_penalty", self.repetition_penalty, 0.01, 100)
        _number("presence_penalty", self.presence_penalty, -2, 2)
        _number("frequency_penalty", self.frequency_penalty, -2, 2)
        _number("top_k", self.top_k, -1, MAX_COUNT)
        _number("max_tokens", self.max_tokens, 0, MAX_COUNT)
        _number("min_tokens", self.min_tokens, 0, MAX_COUNT)
        if self.min_tokens > self.max_tokens:
            raise invalid(
                "min_tokens",
                f"min_tokens is {self.min_tokens}, more than max_tokens, {self.max_tokens}",
                expected=f"0 to {self.max_tokens}",
                actual=self.min_tokens,
            )
        if self.min_tokens and self.grammar is not None:
            raise invalid(
                "min_tokens",
                f"min_tokens is {self.min_tokens}, but the answer's {self.grammar.kind} says when "
                "it ends; leave one of them out",
                expected="0",
                actual=self.min_tokens,
            )
        if self.seed is not None:
            _number("seed", self.seed, 0, MAX_SEED)
        if self.logprobs is not None:
            _number("logprobs", self.logprobs, 0, MAX_TOP_LOGPROBS)
        if self.prompt_logprobs_start is not None:
            _number("prompt_logprobs_start", self.prompt_logprobs_start, 0, MAX_COUNT)
        _number("prompt_logprobs", self.prompt_logprobs, 0, MAX_TOP_LOGPROBS)
        _number("number of logprob_token_ids", len(self.logprob_token_ids), 0, MAX_TOP_LOGPROBS)
        for token in self.logprob_token_ids:
            _number("logprob_token_ids", token, 0, MAX_COUNT)
        self._validate_stops()

    def _validate_stops(self) -> None:
        _number("number of stop strings", len(self.stop), 0, MAX_STOPS, param="stop")
        for stop in self.stop:
            _number("length of a stop string", len(stop), 1, MAX_STOP_CHARS, param="stop")
        _number("number of stop_token_ids", len(self.stop_token_ids), 0, MAX_STOP_IDS)
        for token in self.stop_token_ids:
            _number("stop_token_ids", token, 0, MAX_COUNT)


def _number(name: str, value: float, low: float, high: float, param: str | None = None) -> None:
    if not math.isfinite(value) or not low <= value <= high:
        allowed = f"{low} to {high}"
        raise invalid(
            param or name.split()[-1],
            f"{name} is {value}; expected {allowed}",
            expected=allowed,
            actual=value,
        )


def nth_seed(seed: int | None, index: int) -> int | None:
    """The seed of answer `index` of one request: the given one for the first, then hashes of it."""
    if seed is None or index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
