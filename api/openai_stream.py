"""Streams and replies of the two OpenAI endpoints, which differ only in their choices."""

import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

from baton.api.answers import AnswerDelta, WholeAnswer
from baton.api.replies import timings_json, usage_json
from baton.core.finish import Finished


@dataclass(frozen=True)
class Envelope:
    """The fields that surround the choices in a reply or in a chunk of one."""

    reply_id: str
    kind: str  # OpenAI's `object`
    model: str
    answers_per_prompt: int
    include_usage: bool  # in a stream
    created: int = field(default_factory=lambda: int(time.time()))

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
        return {"usage": usage_json(by_prompt), "timings": timings_json(finished[0])}


class ChoiceFormat(Protocol):
    """The format of one endpoint's choices. It may keep state between deltas."""

    def opening(self) -> Iterator[dict[str, Any]]:
        """Yield the choices to send before the first delta, once it is there."""
        ...

    def choices(self, delta: AnswerDelta) -> Iterator[dict[str, Any]]: ...


async def chunks(
    envelope: Envelope, form: ChoiceFormat, deltas: AsyncGenerator[AnswerDelta, None]
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield a chunk for each choice. The last has the usage totals, if the client asked for
    them.
    """
    finished: dict[int, Finished] = {}
    opened = False
    async with aclosing(deltas):
        async for delta in deltas:
            if not opened:
                opened = True
                for choice in form.opening():
                    yield _chunk(envelope, choice)
            if delta.finished is not None:
                finished[delta.index] = delta.finished
            for choice in form.choices(delta):
                yield _chunk(envelope, choice)
    if envelope.include_usage:
        in_order = [finished[index] for index in sorted(finished)]
        yield envelope.around([]) | envelope.totals(in_order)


def _chunk(envelope: Envelope, choice: Mapping[str, Any]) -> dict[str, Any]:
    chunk = envelope.around([choice])
    # With include_usage OpenAI promises the field in every chunk.
    return chunk | {"usage": None} if envelope.include_usage else chunk
