"""Log probabilities of a prompt in vLLM's form."""

from collections.abc import Iterable
from typing import Any

from baton.core.logprobs import TokenLogprob
from baton.text.token_table import TokenTable

Scores = list[dict[str, dict[str, Any]] | None]


def prompt_scores(tokens: Iterable[TokenLogprob], table: TokenTable) -> Scores:
    """Return one entry for each token of a prompt, by token id; None for the first.

    `rank` is that among the alternatives that were asked for; None where the token is not one.
    """
    return [None if token.logprob is None else _entry(token, table) for token in tokens]


def _entry(token: TokenLogprob, table: TokenTable) -> dict[str, dict[str, Any]]:
    ranks = {token_id: rank for rank, token_id in enumerate(token.top_ids, start=1)}
    scored = {token.token_id: token.logprob} | dict(
        zip(token.top_ids, token.top_logprobs, strict=True)
    )
    return {
        str(token_id): {
            "logprob": logprob,
            "rank": ranks.get(token_id),
            "decoded_token": table.text(token_id),
        }
        for token_id, logprob in scored.items()
    }
