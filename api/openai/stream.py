"""Streams and replies of the two OpenAI endpoints, which differ only in their choices."""

import time
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from baton.api.answers import AnswerDelta, WholeAnswer
from baton.api.replies import cached_json, synthetic_json, timings_json, usage_json
from baton.api.sse import Json
from baton.core.finish import Finished


@dataclass(frozen=True)
class Envelope:
    """The fields that surround the choices in a reply or in a chunk of one."""

    reply_id: str
    kind: str  # OpenAI's `object`
    model: str
    answers_per_prompt: int
    include_usage: bool  # in a stream
    predicted: bool = False  # the usage has the tokens of a prediction
    cached_details: bool = False  # the reply says which memory cached tokens came from
    created: int = field(default_factory=lambda: int(time.time()))
    _before: bytes = field(init=False, repr=False)  # the JSON of a chunk around its choice
    _after: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # With include_usage OpenAI promises the field in every chunk.
        chunk = self.around([]) | ({"usage": None} if self.include_usage else {})
        before, after = orjson.dumps(chunk).rsplit(b"[]", 1)
        object.__setattr__(self, "_before", before + b"[")
        object.__setattr__(self, "_after", b"]" + after)

    def chunk(self, choice: Mapping[str, Any]) -> bytes:
        """Return the JSON of a chunk of a stream. Only its choice is serialised anew."""
        return b"%b%b%b" % (self._before, orjson.dumps(choice), self._after)

    def around(self, choices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.reply_id,
            "object": self.kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

    def whole(
        self, choices: Sequence[Mapping[str, Any]], answers: Sequence[WholeAnswer]
    ) -> dict[str, Any]:
        """Return a reply that is not streamed."""
        return self.around(choices) | self.totals([answer.finished for answer in answers])

    def totals(self, finished: Sequence[Finished]) -> dict[str, Any]:
        """Return usage and the first answer's timings. `finished` is in the order of the
        choices.
        """
        n = self.answers_per_prompt
        by_prompt = [finished[i : i + n] for i in range(0, len(finished), n)]
        return {
            "usage": usage_json(by_prompt, predicted=self.predicted),
            "timings": timings_json(finished[0]),
            **self.remarks(finished),
        }

    def remarks(self, finished: Sequence[Finished]) -> dict[str, Any]:
        """Return what was asked for: the explanations of the answers, in their order, and where
        cached tokens came from; and that the answers are not the model's, where they are not.
        """
        explained = [each.explanation for each in finished if each.explanation is not None]
        found: dict[str, Any] = {"explanations": explained} if explained else {}
        if self.cached_details and finished:
            first = [each.usage for each in finished[:: self.answers_per_prompt]]
            found["sglext"] = {"cached_tokens_details": cached_json(first)}
        return found | (synthetic_json(finished[0]) if finished else {})


class ChoiceFormat(Protocol):
    """The format of one endpoint's choices. It may keep state between deltas."""

    def opening(self) -> Iterable[dict[str, Any]]:
        """Return the choices to send before the first delta, once it is there."""
        ...

    def choices(self, delta: AnswerDelta) -> Iterable[dict[str, Any]]: ...


async def chunks(
    envelope: Envelope, form: ChoiceFormat, deltas: AsyncGenerator[AnswerDelta, None]
) -> AsyncGenerator[Json, None]:
    """Yield a chunk for each choice. The last has the usage totals and the explanations, if the
    client asked for them, and what `Envelope.remarks` has to say.
    """
    finished: dict[int, Finished] = {}
    opened = False
    async with aclosing(deltas):
        async for delta in deltas:
            if not opened:
                opened = True
                for choice in form.opening():
                    yield envelope.chunk(choice)
            if delta.finished is not None:
                finished[delta.index] = delta.finished
            for choice in form.choices(delta):
                yield envelope.chunk(choice)
    in_order = [finished[index] for index in sorted(finished)]
    if envelope.include_usage:
        yield envelope.around([]) | envelope.totals(in_order)
    elif remarked := envelope.remarks(in_order):
        yield envelope.around([]) | remarked
