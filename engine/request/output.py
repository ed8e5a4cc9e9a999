"""Whole answers, gathered from events."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from baton.core.logprobs import TokenLogprob
from baton.engine.request.events import Event, PromptScored, RequestFinished, TokenSampled

PromptIds = Sequence[int]


@dataclass(frozen=True)
class Output:
    """One request's answer. `finished` says why it ended and what to cut from its text."""

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]  # one a token where asked for, else empty
    prompt_logprobs: tuple[TokenLogprob, ...]  # from prompt_logprobs_start on
    finished: RequestFinished


@dataclass
class _Answer:
    tokens: list[TokenSampled] = field(default_factory=list)
    scores: list[TokenLogprob] = field(default_factory=list)
    finished: RequestFinished | None = None


class OutputCollector:
    """Events of the expected requests in, Outputs out."""

    def __init__(self, request_ids: Iterable[str]) -> None:
        self._answers = {request_id: _Answer() for request_id in request_ids}
        self._open = len(self._answers)

    @property
    def done(self) -> bool:
        return not self._open

    def take(self, events: Iterable[Event]) -> None:
        for event in events:
            answer = self._answers.get(event.request_id)
            if answer is None:
                continue
            if isinstance(event, TokenSampled):
                answer.tokens.append(event)
            elif isinstance(event, PromptScored):
                answer.scores += event.scores.tokens
            elif isinstance(event, RequestFinished):
                answer.finished = event
                self._open -= 1

    def outputs(self) -> list[Output]:
        """Return the finished answers, in the order in which they were expected."""
        return [
            Output(
                request_id,
                tuple(event.token_id for event in answer.tokens),
                tuple(event.logprob for event in answer.tokens if event.logprob is not None),
                tuple(answer.scores),
                answer.finished,
            )
            for request_id, answer in self._answers.items()
            if answer.finished is not None
        ]
