"""The choices of `/v1/chat/completions`: messages, and OpenAI's newer log probabilities."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from baton.api.answers import AnswerDelta, WholeAnswer
from baton.api.backend import TokenLogprob
from baton.text.token_table import TokenTable


@dataclass(frozen=True)
class ChatChoices:
    """The formatter of one request with `count` choices."""

    table: TokenTable
    count: int
    want_logprobs: bool

    def opening(self) -> Iterator[dict[str, Any]]:
        """Every choice names its role before its first text."""
        for index in range(self.count):
            yield self._choice(index, {"role": "assistant", "content": ""}, ())

    def choices(self, delta: AnswerDelta) -> Iterator[dict[str, Any]]:
        """Tokens without certain text yet make no chunk, unless their log probabilities do."""
        if delta.text or (self.want_logprobs and delta.logprobs):
            yield self._choice(delta.index, {"content": delta.text}, delta.logprobs)
        if delta.finished is not None:
            yield self._choice(delta.index, {}, (), delta.finished.reason.value)

    def whole(self, index: int, answer: WholeAnswer) -> dict[str, Any]:
        """A choice of a reply that is not a stream."""
        return {
            "index": index,
            "message": {"role": "assistant", "content": answer.text, "refusal": None},
            "logprobs": self._logprobs(answer.logprobs) if self.want_logprobs else None,
            "finish_reason": answer.finished.reason.value,
        }

    def _choice(
        self,
        index: int,
        delta: dict[str, Any],
        entries: Sequence[TokenLogprob],
        reason: str | None = None,
    ) -> dict[str, Any]:
        logprobs = self._logprobs(entries) if entries and self.want_logprobs else None
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        return {"content": [self._entry(entry) for entry in entries], "refusal": None}

    def _entry(self, entry: TokenLogprob) -> dict[str, Any]:
        top = zip(entry.top_ids, entry.top_logprobs, strict=True)
        own = self._token(entry.token_id, entry.logprob)
        return own | {"top_logprobs": [self._token(token, logprob) for token, logprob in top]}

    def _token(self, token_id: int, logprob: float | None) -> dict[str, Any]:
        return {
            "token": self.table.text(token_id),
            "logprob": logprob,
            "bytes": list(self.table.raw_bytes(token_id)),
        }
