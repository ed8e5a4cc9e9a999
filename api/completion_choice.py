"""The choices of `/v1/completions`: text, and OpenAI's older table of log probabilities."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from baton.api.answers import AnswerDelta, WholeAnswer
from baton.api.prompt_scores import prompt_scores
from baton.api.replies import ending
from baton.core.finish import Finished
from baton.core.logprobs import TokenLogprob
from baton.text.token_table import TokenTable


@dataclass
class CompletionChoices:
    """The formatter of one request. `echoes` has the prompt text of each choice, or ''."""

    table: TokenTable
    echoes: Sequence[str]
    want_logprobs: bool
    want_ids: bool = False
    want_prompt: bool = False  # the prompt's log probabilities in vLLM's form
    _offsets: dict[int, int] = field(default_factory=dict)  # characters scored so far, by choice
    _to_echo: set[int] = field(default_factory=set)
    _prompts: dict[int, list[TokenLogprob]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._to_echo = {i for i, echo in enumerate(self.echoes) if echo}

    def opening(self) -> Iterator[dict[str, Any]]:
        return iter(())

    def choices(self, delta: AnswerDelta) -> Iterator[dict[str, Any]]:
        """Yield the chunks of one delta. Tokens without final text make one only if ids or
        scores are asked.
        """
        if delta.prompt_logprobs is not None:
            self._prompts.setdefault(delta.index, []).extend(delta.prompt_logprobs.tokens)
        begun = bool(delta.token_ids) or delta.finished is not None
        if begun and delta.index in self._to_echo:
            self._to_echo.discard(delta.index)
            prompt = self._prompts.pop(delta.index, [])
            yield self._choice(delta.index, self.echoes[delta.index], prompt)
        wanted = (self.want_logprobs or self.want_ids) and bool(delta.token_ids)
        if delta.text or delta.finished is not None or wanted:
            ids = delta.token_ids
            yield self._choice(delta.index, delta.text, delta.logprobs, delta.finished, ids)

    def whole(self, index: int, answer: WholeAnswer) -> dict[str, Any]:
        """Return one choice of a reply that is not streamed."""
        text = self.echoes[index] + answer.text
        echoed = answer.prompt_logprobs if self.echoes[index] else []
        entries = [*echoed, *answer.logprobs]
        choice = self._choice(index, text, entries, answer.finished, answer.token_ids)
        if self.want_prompt:
            choice["prompt_logprobs"] = prompt_scores(answer.prompt_logprobs, self.table)
        return choice

    def _choice(
        self,
        index: int,
        text: str,
        entries: Sequence[TokenLogprob],
        finished: Finished | None = None,
        ids: Sequence[int] = (),
    ) -> dict[str, Any]:
        logprobs = self._logprobs(index, entries) if self.want_logprobs else None
        choice = {"index": index, "text": text, "logprobs": logprobs} | ending(finished)
        return choice | {"token_ids": ids} if self.want_ids else choice

    def _logprobs(self, index: int, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        tokens = [self.table.text(entry.token_id) for entry in entries]
        offset = self._offsets.get(index, 0)
        offsets = []
        for token in tokens:
            offsets.append(offset)
            offset += len(token)
        self._offsets[index] = offset
        return {
            "tokens": tokens,
            "token_logprobs": [entry.logprob for entry in entries],
            "top_logprobs": [self._top(entry) for entry in entries],
            "text_offset": offsets,
        }

    def _top(self, entry: TokenLogprob) -> dict[str, float] | None:
        if entry.logprob is None:
            return None
        top: dict[str, float] = {}
        for token, logprob in zip(entry.top_ids, entry.top_logprobs, strict=True):
            top.setdefault(
                self.table.text(token), logprob
            )  # parts of a character can have the same text
        return top
