"""Log probabilities of tokens."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TokenLogprob:
    """One token's log probability under the raw logits, before penalties and temperature.

    logprob: None for a prompt's first token, which no logits predicted.
    top_ids, top_logprobs: the n most probable tokens at this position, most probable first.
    asked_logprobs: those of the request's `logprob_token_ids`, in their order.
    """

    token_id: int
    logprob: float | None
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()
    asked_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True)
class PromptLogprobs:
    """Log probabilities of the prompt tokens from position `start` on.

    Those of a long prompt come in several parts, one a chunk.
    """

    start: int
    tokens: tuple[TokenLogprob, ...]
