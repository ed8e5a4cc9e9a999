"""The log probabilities of one completion, in OpenAI's older form."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TypedDict

from baton.api.echo import Echo
from baton.api.text_service import TextService
from baton.core.logprobs import TokenLogprob
from baton.text.token_offsets import make_token_offsets
from baton.text.token_table import TokenTable


class TokenScores(TypedDict):
    """The field `logprobs` of a choice. Each list has one entry for each token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]  # in characters of the choice's text


class ScoredTokens:
    """The scores of one choice. A token waits until its offset is certain."""

    def __init__(self, text: TextService, echo: Echo, skip_special_tokens: bool) -> None:
        self._table = text.table
        self._echo = echo
        self._offsets = make_token_offsets(text.tokenizer, skip_special_tokens, echo.last_id)
        self._waiting: deque[TokenLogprob] = deque()

    def prompt(self, entries: Sequence[TokenLogprob]) -> TokenScores:
        """Return the scores of the echoed prompt's tokens."""
        return _scores(entries, self._echo.offsets, self._table)

    def answer(self, entries: Iterable[TokenLogprob], *, end: bool) -> TokenScores:
        """Take the answer's next tokens. Return the scores of those whose offset is certain now.

        end: no token follows, so that all are.
        """
        self._waiting += entries
        offsets = self._offsets.push([entry.token_id for entry in entries])
        if end:
            offsets += self._offsets.finish()
        certain = [self._waiting.popleft() for _ in offsets]
        start = len(self._echo.text or "")
        return _scores(certain, [*map(start.__add__, offsets)], self._table)


def joined(first: TokenScores, second: TokenScores) -> TokenScores:
    return {
        "tokens": first["tokens"] + second["tokens"],
        "token_logprobs": first["token_logprobs"] + second["token_logprobs"],
        "top_logprobs": first["top_logprobs"] + second["top_logprobs"],
        "text_offset": first["text_offset"] + second["text_offset"],
    }


def _scores(
    entries: Sequence[TokenLogprob], offsets: Sequence[int], table: TokenTable
) -> TokenScores:
    tokens: list[str] = []
    logprobs: list[float | None] = []
    tops: list[dict[str, float] | None] = []
    for entry in entries:
        tokens.append(table.text(entry.token_id))
        logprobs.append(entry.logprob)
        tops.append(_top(entry, table))
    return {
        "tokens": tokens,
        "token_logprobs": logprobs,
        "top_logprobs": tops,
        "text_offset": list(offsets[: len(entries)]),
    }


def _top(entry: TokenLogprob, table: TokenTable) -> dict[str, float] | None:
    if entry.logprob is None:
        return None
    top: dict[str, float] = {}
    for text, logprob in zip(map(table.text, entry.top_ids), entry.top_logprobs, strict=True):
        top.setdefault(text, logprob)  # parts of a character can have the same text
    return top
