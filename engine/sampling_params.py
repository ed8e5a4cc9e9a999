"""How one request is sampled."""

import math
from dataclasses import dataclass
from functools import cached_property

from baton.engine.errors import RequestError
from baton.text.grammar import Grammar

MAX_LOGPROBS = 128
MAX_STOPS = 16
GREEDY_BELOW = 1e-5
"""A temperature below this means greedy: dividing logits by it overflows float32."""


@dataclass(frozen=True)
class SamplingParams:
    """Set by the client, unchanged from admission to the end. `temperature` 0, or all but 0, is
    greedy.

    Noise is a function of (seed, output position, vocabulary index) alone, so the same request
    gives the same tokens whatever it is batched with and wherever it runs.
    """

    temperature: float = 1.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and output, multiplicative
    presence_penalty: float = 0.0  # over output, once a token
    frequency_penalty: float = 0.0  # over output, a time it occurred
    seed: int = 0  # 64 bits, unsigned
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    max_tokens: int = 16
    logprobs: int | None = None  # top n of each output token; 0: the token's own alone
    prompt_logprobs_start: int | None = None  # from this prompt position on
    prompt_logprobs: int = 0  # top n of each scored prompt token
    logprob_token_ids: tuple[int, ...] = ()  # asked about wherever logprobs are given
    grammar: Grammar | None = None  # what the answer must look like; then it ends when it is whole

    def __post_init__(self) -> None:
        """Raises RequestError that names the field, what it was and what it may be."""
        self._between("temperature", 0.0, 100.0)
        self._between("top_p", 0.0, 1.0, low_open=True)
        self._between("min_p", 0.0, 1.0)
        self._between("repetition_penalty", 0.0, 100.0, low_open=True)
        self._between("presence_penalty", -2.0, 2.0)
        self._between("frequency_penalty", -2.0, 2.0)
        self._between("top_k", 0, 2**31 - 1)
        self._between("seed", 0, 2**64 - 1)
        self._between("max_tokens", 0, 2**31 - 1)
        self._between("min_tokens", 0, self.max_tokens)
        self._between("logprobs", 0, MAX_LOGPROBS)
        self._between("prompt_logprobs", 0, MAX_LOGPROBS)
        self._between("prompt_logprobs_start", 0, 2**31 - 1)
        if len(self.logprob_token_ids) > MAX_LOGPROBS:
            raise RequestError(
                f"logprob_token_ids has {len(self.logprob_token_ids)} ids; at most {MAX_LOGPROBS}",
                "logprob_token_ids",
            )
        if self.grammar is not None and self.min_tokens:
            raise RequestError(
                f"min_tokens is {self.min_tokens}, but the answer's grammar says when it ends; "
                "leave one of them out",
                "min_tokens",
            )
        if len(self.stop) > MAX_STOPS or not all(self.stop):
            raise RequestError(f"stop must be up to {MAX_STOPS} non-empty strings", "stop")

    @cached_property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @cached_property
    def penalised(self) -> bool:
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    def _between(self, field: str, low: float, high: float, low_open: bool = False) -> None:
        value = getattr(self, field)
        if value is None:
            return
        fits = (low < value if low_open else low <= value) and value <= high
        if math.isnan(value) or not fits:
            above = "above" if low_open else "at least"
            raise RequestError(
                f"{field} must be {above} {low:g} and at most {high:g}; got {value}", field
            )
