"""The sampling parameters of one answer, and their limits."""

import secrets
from dataclasses import dataclass, fields
from functools import cached_property

from baton.core.errors import RequestError
from baton.core.grammar import Grammar
from baton.core.limits import (
    MAX_INT32,
    FloatRange,
    IntRange,
    Rule,
    Texts,
    TokenBiases,
    TokenIds,
    limited,
)

MAX_SEED = 2**64 - 1
MAX_LOGPROBS = 128
"""Alternatives at one position, and tokens that a request may ask about."""
MAX_STOP_TOKEN_IDS = 128
MAX_BIASES = 1024
MAX_ALLOWED_TOKEN_IDS = 4096
GREEDY_BELOW = 1e-5
"""A temperature below this means greedy: dividing logits by it overflows float32."""


@dataclass(frozen=True)
class SamplingParams:
    """Sampling parameters of one answer. The client sets them; they never change.

    Sampling noise is a function of (seed, output position, vocabulary index) alone, so the same
    request gives the same tokens whatever it is batched with and wherever it runs. Several answers
    to one prompt (`n`) are several requests, so `n` is not here.
    """

    # Below GREEDY_BELOW: kept as 0.
    temperature: float = limited(1.0, FloatRange(0, 100), recommended=True)
    top_k: int = limited(0, IntRange(-1, MAX_INT32), recommended=True)  # 0: off; -1 is read as 0
    # Below 1e-6 a float32 sum of probabilities cannot tell top_p from zero.
    top_p: float = limited(1.0, FloatRange(1e-6, 1), recommended=True)
    min_p: float = limited(0.0, FloatRange(0, 1), recommended=True)
    # Over prompt and output, multiplicative. A logit is divided or multiplied by it; from 0.01 to
    # 100 no logit of a model leaves float32's range.
    repetition_penalty: float = limited(1.0, FloatRange(0.01, 100), recommended=True)
    presence_penalty: float = limited(0.0, FloatRange(-2, 2))  # over output, once a token
    frequency_penalty: float = limited(0.0, FloatRange(-2, 2))  # over output, a time it occurred
    # None: the router draws one, and an engine alone takes 0. Kept as 64 unsigned bits; a negative
    # one, which OpenAI's clients may send, is read as its two's complement.
    seed: int | None = limited(None, IntRange(-(2**63), MAX_SEED), secret=True)
    # Added to logits, after the penalties: (token id, bias), by rising id. A mapping may be given.
    logit_bias: tuple[tuple[int, float], ...] = limited((), TokenBiases(MAX_BIASES, 100))
    allowed_token_ids: tuple[int, ...] = limited((), TokenIds(MAX_ALLOWED_TOKEN_IDS))  # (): any
    # An answer never spells one by the tokens that the tokenizer makes of it.
    bad_words: tuple[str, ...] = limited((), Texts(most=128, longest=256))
    stop_token_ids: tuple[int, ...] = limited((), TokenIds(MAX_STOP_TOKEN_IDS))
    # The lengths bound the automaton that finds them (text/stops.py) to about a megabyte.
    stop: tuple[str, ...] = limited((), Texts(most=16, longest=256))
    stop_regex: tuple[str, ...] = limited((), Texts(most=8, longest=256))  # see text/stop_regex.py
    include_stop: bool = False
    ignore_eos: bool = False
    min_tokens: int = limited(0, IntRange(0, MAX_INT32))  # at most max_tokens
    max_tokens: int = limited(16, IntRange(0, MAX_INT32))
    # Top n of each output token; 0: the token's own alone; None: off.
    logprobs: int | None = limited(None, IntRange(0, MAX_LOGPROBS))
    # From this prompt position on; None: off.
    prompt_logprobs_start: int | None = limited(None, IntRange(0, MAX_INT32))
    prompt_logprobs: int = limited(0, IntRange(0, MAX_LOGPROBS))  # top n of each prompt token
    # Tokens whose log probabilities are given wherever any are.
    logprob_token_ids: tuple[int, ...] = limited((), TokenIds(MAX_LOGPROBS))
    grammar: Grammar | None = None  # what the answer must look like; it ends when that is whole

    def __post_init__(self) -> None:
        """Check every parameter. Raises RequestError that names field, value and range."""
        for name, default, rule in _RULES:
            value = self.__dict__[name]
            if value == default and type(value) is type(default):
                continue  # nearly all are: checking each takes 0.1 ms on every hop of a request
            self.__dict__[name] = rule.checked(name, value)
        # One spelling of each: equal requests have equal hashes.
        if self.temperature < GREEDY_BELOW:
            self.__dict__["temperature"] = 0.0
        self.__dict__["top_k"] = max(self.top_k, 0)
        if self.seed is not None:
            self.__dict__["seed"] = self.seed % (MAX_SEED + 1)
        self._check_min_tokens()

    @cached_property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @cached_property
    def penalised(self) -> bool:
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    @cached_property
    def plain(self) -> bool:
        """True if tokens are the likeliest by the model, and nobody asks how likely."""
        changed = self.penalised or self.logit_bias
        return self.greedy and not changed and self.logprobs is None

    def seeded(self) -> "SamplingParams":
        """Return these parameters with a seed: their own, or one drawn now."""
        return self if self.seed is not None else self.with_seed(secrets.randbits(64))

    def with_seed(self, seed: int | None) -> "SamplingParams":
        """Return these parameters with another seed: 64 unsigned bits, or None. The others were
        checked when they were given, and are not checked again.
        """
        made = object.__new__(SamplingParams)
        made.__dict__.update(self.__dict__, seed=seed)
        return made

    def check_prompt(self, prompt_len: int) -> None:
        """Raise RequestError where prompt scores would begin behind the prompt's end."""
        start = self.prompt_logprobs_start
        if start is not None and start > prompt_len:
            raise RequestError(
                f"prompt_logprobs_start is {start}, but the prompt has {prompt_len} tokens",
                "prompt_logprobs_start",
                f"at most {prompt_len}",
                str(start),
            )

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise RequestError for a token id that the model does not have."""
        for name, ids in (
            ("stop_token_ids", self.stop_token_ids),
            ("logit_bias", [token for token, _ in self.logit_bias]),
            ("allowed_token_ids", self.allowed_token_ids),
            ("logprob_token_ids", self.logprob_token_ids),
        ):
            if max(ids, default=0) >= vocab_size:
                raise RequestError(
                    f"{name} has token id {max(ids)}; expected 0 to {vocab_size - 1}",
                    name,
                    f"0 to {vocab_size - 1}",
                    str(max(ids)),
                )

    def _check_min_tokens(self) -> None:
        if self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens is {self.min_tokens}, more than max_tokens, {self.max_tokens}",
                "min_tokens",
                f"0 to {self.max_tokens}",
                str(self.min_tokens),
            )
        if self.min_tokens and self.grammar is not None:
            raise RequestError(
                f"min_tokens is {self.min_tokens}, but the answer's {self.grammar.kind} says when "
                "it ends; leave one of them out",
                "min_tokens",
                "0",
                str(self.min_tokens),
            )


def _rules() -> tuple[tuple[str, object, Rule], ...]:
    """Return the name, default and rule of each field that has a rule."""
    each = fields(SamplingParams)
    return tuple((f.name, f.default, f.metadata["rule"]) for f in each if "rule" in f.metadata)


_RULES = _rules()
