"""The choices of `/v1/completions`: text, and OpenAI's older table of log probabilities."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from baton.api.answers import AnswerDelta, WholeAnswer
from baton.api.echo import Echo
from baton.api.echo_maker import lead_of
from baton.api.openai.prompt_scores import prompt_scores
from baton.api.openai.scored_tokens import ScoredTokens, TokenScores, joined
from baton.api.replies import GOES_ON, ending
from baton.api.text_service import TextService
from baton.core.finish import Finished
from baton.core.logprobs import TokenLogprob


@dataclass
class CompletionChoices:
    """The formatter of one request. `echoes` has the prompt of each choice."""

    text: TextService
    echoes: Sequence[Echo]
    skip_special_tokens: bool
    want_logprobs: bool
    want_ids: bool = False
    want_prompt: bool = False  # the prompt's log probabilities in vLLM's form
    _to_begin: set[int] = field(default_factory=set)  # choices without a token that has text
    _to_echo: set[int] = field(default_factory=set)
    _leads: dict[int, str] = field(default_factory=dict)  # text that the next text begins with
    _scores: list[ScoredTokens] = field(default_factory=list)
    _prompts: dict[int, list[TokenLogprob]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._to_begin = set(range(len(self.echoes)))
        self._to_echo = {i for i, echo in enumerate(self.echoes) if echo.text is not None}
        if self.want_logprobs:
            skip = self.skip_special_tokens
            self._scores = [ScoredTokens(self.text, echo, skip) for echo in self.echoes]

    def opening(self) -> Iterator[dict[str, Any]]:
        return iter(())

    def choices(self, delta: AnswerDelta) -> list[dict[str, Any]]:
        """Return the choices of one delta. Tokens without final text make one only if ids or
        scores are asked.
        """
        index = delta.index
        found = []
        if delta.prompt_logprobs is not None:
            self._prompts.setdefault(index, []).extend(delta.prompt_logprobs.tokens)
        begun = bool(delta.token_ids) or delta.finished is not None
        if begun and index in self._to_echo:
            self._to_echo.discard(index)
            scores: TokenScores | None = None
            if self.want_logprobs:
                scores = self._scores[index].prompt(self._prompts.pop(index, []))
            found.append(self._choice(index, self.echoes[index].text or "", scores))
        text = delta.text
        if self._to_begin or self._leads:
            text = self._continued(index, delta.token_ids, text)
        wanted = (self.want_logprobs or self.want_ids) and bool(delta.token_ids)
        if text or delta.finished is not None or wanted:
            scores = None
            if self.want_logprobs:
                end = delta.finished is not None
                scores = self._scores[index].answer(delta.logprobs, end=end)
            found.append(self._choice(index, text, scores, delta.finished, delta.token_ids))
        return found

    def whole(self, index: int, answer: WholeAnswer) -> dict[str, Any]:
        """Return one choice of a reply that is not streamed."""
        echo = self.echoes[index]
        text = (echo.text or "") + self._continued(index, answer.token_ids, answer.text)
        scores = None
        if self.want_logprobs:
            prompt = self._scores[index].prompt([] if echo.text is None else answer.prompt_logprobs)
            scores = joined(prompt, self._scores[index].answer(answer.logprobs, end=True))
        choice = self._choice(index, text, scores, answer.finished, answer.token_ids)
        if self.want_prompt:
            choice["prompt_logprobs"] = prompt_scores(answer.prompt_logprobs, self.text.table)
        return choice

    def _continued(self, index: int, ids: Sequence[int], text: str) -> str:
        """Return the next text of a choice, with the space that its first token begins with."""
        if index in self._to_begin and ids:
            lead = lead_of(self.text, self.echoes[index], ids, self.skip_special_tokens)
            if lead is not None:
                self._to_begin.discard(index)
                self._leads[index] = lead
        return self._leads.pop(index, "") + text if text and self._leads else text

    def _choice(
        self,
        index: int,
        text: str,
        scores: TokenScores | None,
        finished: Finished | None = None,
        ids: Sequence[int] = (),
    ) -> dict[str, Any]:
        end = GOES_ON if finished is None else ending(finished)
        choice = {"index": index, "text": text, "logprobs": scores, **end}
        return choice | {"token_ids": ids} if self.want_ids else choice
