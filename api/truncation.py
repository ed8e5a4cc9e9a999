"""Prompts that are cut to a length that their client names, as vLLM cuts them."""

from collections.abc import Sequence

from baton.api.backend import ModelInfo
from baton.api.errors import invalid
from baton.api.schema import SamplingBody

ALL_THAT_FITS = -1


def most_tokens(body: SamplingBody, model: ModelInfo) -> int | None:
    """Return how many tokens a prompt may have before it is cut; None: any number."""
    return model.max_model_len if body.truncate_prompt_tokens is None else None


def truncated(
    ids: Sequence[int], body: SamplingBody, model: ModelInfo, max_tokens: int | None
) -> Sequence[int]:
    """Return the tokens of a prompt that `truncate_prompt_tokens` leaves: the last, or the first.

    max_tokens: of the answer; None: one at least. Raises INVALID_REQUEST.
    """
    most = body.truncate_prompt_tokens
    if most is None:
        return ids
    if most == ALL_THAT_FITS:
        most = max(1, model.max_model_len - (1 if max_tokens is None else max_tokens))
    if most < 1:
        raise invalid(
            "truncate_prompt_tokens",
            f"truncate_prompt_tokens is {most}; expected 1 or more, or {ALL_THAT_FITS} for what "
            "the context leaves",
            expected=f"{ALL_THAT_FITS}, or 1 or more",
            actual=most,
        )
    return ids[-most:] if body.truncation_side == "left" else ids[:most]
