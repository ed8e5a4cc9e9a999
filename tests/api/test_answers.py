"""Events to deltas: order, failures, and requests that end for all when one fails."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import pytest
from fake_backend import FakeBackend

from baton.api.answers import collect, stream_answer, stream_answers
from baton.api.backend import GenerateRequest, TokenEvent
from baton.api.requests import RequestLabels, make_requests
from baton.api.text_service import TextService
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.core.finish import End, Finished, FinishReason
from baton.core.sampling_params import SamplingParams


@dataclass
class Scripted(FakeBackend):
    """Plays events as they are."""

    events: list[TokenEvent | Finished] = field(default_factory=list)

    async def generate(
        self, request: GenerateRequest
    ) -> AsyncGenerator[TokenEvent | Finished, None]:
        for event in self.events:
            yield event


def requests(n: int = 1) -> list[GenerateRequest]:
    return make_requests((65,), SamplingParams(seed=3), n, RequestLabels())


async def outcome(text: TextService, *events: TokenEvent | Finished) -> tuple[str, list[str]]:
    """The text, and the requests that were cancelled."""
    backend = Scripted(text.tokenizer, events=list(events))
    (request,) = requests()
    (answer,) = await collect(stream_answer(backend, text, request), 1)
    return answer.text, backend.cancelled


STOPPED = Finished(End(FinishReason.STOP))


async def test_an_answer_that_finished_is_not_cancelled(text: TextService) -> None:
    shown, cancelled = await outcome(text, TokenEvent(0, (65, 66)), TokenEvent(2, (67,)), STOPPED)
    assert shown == text.tokenizer.decode([65, 66, 67])
    assert cancelled == []


@pytest.mark.parametrize("index", [0, 2])
async def test_tokens_lost_or_repeated_on_the_way_are_an_error(
    text: TextService, index: int
) -> None:
    with pytest.raises(ApiError, match=f"from index {index} came where 1 was next") as caught:
        await outcome(text, TokenEvent(0, (65,)), TokenEvent(index, (66,)), STOPPED)
    assert caught.value.code is ErrorCode.DATA_LOSS


async def test_a_stream_that_just_ends_is_an_error_and_not_a_short_answer(
    text: TextService,
) -> None:
    with pytest.raises(ApiError, match="without a finish"):
        await outcome(text, TokenEvent(0, (65,)))


@pytest.mark.parametrize(
    ("reason", "code"),
    [(FinishReason.ABORT, ErrorCode.CANCELLED), (FinishReason.ERROR, ErrorCode.INTERNAL)],
)
async def test_a_failed_finish_raises_its_error_or_one_of_its_kind(
    text: TextService, reason: FinishReason, code: ErrorCode
) -> None:
    with pytest.raises(ApiError) as caught:
        await outcome(text, Finished(End(reason)))
    assert caught.value.code is code
    with pytest.raises(ApiError, match="rank lost"):
        await outcome(
            text, Finished(End(reason), error=ApiError(ErrorCode.UNAVAILABLE, "rank lost"))
        )


@dataclass
class OneFails(FakeBackend):
    """Every request but the first holds after a token; the first fails once they all do."""

    breaks: Exception = field(default_factory=Exception)

    async def generate(
        self, request: GenerateRequest
    ) -> AsyncGenerator[TokenEvent | Finished, None]:
        first = not self.seen
        self.seen.append(request)
        yield TokenEvent(0, (65,))
        if first:
            await asyncio.wait_for(self.holding.wait(), 60)
            raise self.breaks
        if len(self.seen) == 3:
            self.holding.set()
        await asyncio.wait_for(asyncio.Event().wait(), 60)


@pytest.mark.parametrize(
    "failure",
    [ApiError(ErrorCode.UNAVAILABLE, "lost"), KeyError("a fault of ours: lost")],
    ids=type,
)
async def test_the_first_failure_cancels_the_other_answers(
    text: TextService, failure: Exception
) -> None:
    backend = OneFails(text.tokenizer, breaks=failure)
    wanted = requests(3)
    with pytest.raises(type(failure), match="lost"):
        async with asyncio.timeout(60):
            await collect(stream_answers(backend, text, wanted), 3)
    assert set(backend.cancelled) == {request.request_id for request in wanted}
