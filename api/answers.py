"""Answers as text: the events of one request with their text, and several requests as one
stream.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from baton.api.backend import Backend, GenerateRequest
from baton.api.text_service import TextService
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.core.finish import End, Finished, FinishReason, Usage
from baton.core.logprobs import PromptLogprobs, TokenLogprob
from baton.core.supervised import child
from baton.text.reasoning_meter import ReasoningMeter

_AHEAD = 64
"""Deltas that are buffered for a slow client. After that its backend streams are not read."""


class AnswerDelta(NamedTuple):
    """The part that one event adds to one answer. A tuple, because one is made for each token."""

    # The request's position among the stream's. It hides `tuple.index`, which is not used here.
    index: int  # type: ignore[assignment]
    text: str  # text that can no longer change; it may lag behind the tokens
    first_index: int  # output position of token_ids[0]
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()  # with a meter, they may lag as text does
    prompt_logprobs: PromptLogprobs | None = None
    finished: Finished | None = None  # set on the answer's last delta
    reasoning: int = 0  # how many of `logprobs`, the first ones, belong to the answer's reasoning


async def stream_answer(
    backend: Backend,
    text: TextService,
    request: GenerateRequest,
    *,
    index: int = 0,
    skip_special_tokens: bool = True,
    mark_ids: frozenset[int] = frozenset(),
    meter: ReasoningMeter | None = None,
) -> AsyncGenerator[AnswerDelta, None]:
    """Yield the parts of one answer as it grows. mark_ids: as for `TextService.answer`.

    meter: counts the tokens of its reasoning; None: it has none.
    Closing or cancelling the generator early cancels the request. Raises the `ApiError` of an
    answer that failed or was aborted.
    """
    answer = text.answer(request.sampling, skip_special_tokens, mark_ids)
    given = 0
    unsure: tuple[TokenLogprob, ...] = ()  # of tokens that may be reasoning or content
    over = False
    failure = ErrorCode.CANCELLED  # unless an error says otherwise
    record = request.record
    if record is not None:
        record.begun(request.request_id, request.client_id)
    events = backend.generate(request)
    try:  # `aclosing` would be four calls more
        async for event in events:
            if isinstance(event, Finished):
                over = True
                if record is not None:
                    record.finished(event)
                if _out_of_time(event) and (held := answer.finish()):
                    yield AnswerDelta(index, held, given)
                _raise_if_failed(event)
                tail = answer.finish(event.end.cut_chars)
                if meter is not None:
                    event = replace(event, reasoning_tokens=meter.tokens)
                yield AnswerDelta(index, tail, given, logprobs=unsure, finished=event)
                return
            first_index, ids, logprobs, prompt_logprobs = event
            if ids and first_index != given:
                raise _out_of_order(first_index, given)
            delta = answer.push(ids)
            thought = 0
            if meter is not None:
                thought = meter.count(ids)
                logprobs = unsure + logprobs
                unsure, logprobs = (logprobs, ()) if meter.undecided else ((), logprobs)
            yield AnswerDelta(
                index, delta, given, ids, logprobs, prompt_logprobs, reasoning=thought
            )
            given += len(ids)
        raise ApiError(ErrorCode.INTERNAL, "the answer's stream ended without a finish")
    except ApiError as error:
        failure = error.code
        raise
    finally:
        try:
            if not over:  # harmless for a request that never began
                if record is not None:
                    record.ended(failure.name.lower(), Usage(len(request.prompt_ids), given))
                await backend.cancel(request.request_id)
        finally:
            await events.aclose()


def _out_of_order(first_index: int, given: int) -> ApiError:
    return ApiError(
        ErrorCode.DATA_LOSS,
        f"tokens from index {first_index} came where {given} was next",
        expected=str(given),
        actual=str(first_index),
    )


def _out_of_time(finished: Finished) -> bool:
    error = finished.error
    return error is not None and error.code is ErrorCode.DEADLINE_EXCEEDED


def _raise_if_failed(finished: Finished) -> None:
    if finished.end.reason is FinishReason.ABORT:
        raise finished.error or ApiError(ErrorCode.CANCELLED, "the request was aborted")
    if finished.end.reason is FinishReason.ERROR:
        raise finished.error or ApiError(ErrorCode.INTERNAL, "the request failed; no reason given")


def stream_answers(
    backend: Backend,
    text: TextService,
    requests: Sequence[GenerateRequest],
    *,
    skip_special_tokens: bool = True,
    mark_ids: frozenset[int] = frozenset(),
    meters: Sequence[ReasoningMeter] = (),
) -> AsyncGenerator[AnswerDelta, None]:
    """Run all requests at once and yield their parts as they come. The first failure cancels the
    rest.

    meters: one for each request, or none; as for `stream_answer`.
    """
    streams = [
        stream_answer(
            backend,
            text,
            request,
            index=i,
            skip_special_tokens=skip_special_tokens,
            mark_ids=mark_ids,
            meter=meters[i] if meters else None,
        )
        for i, request in enumerate(requests)
    ]
    return merged(streams)


def merged(
    streams: Sequence[AsyncGenerator[AnswerDelta, None]],
) -> AsyncGenerator[AnswerDelta, None]:
    """Yield the parts of all streams as they come. The first failure cancels the other streams."""
    return streams[0] if len(streams) == 1 else _several(streams)


async def _several(
    streams: Sequence[AsyncGenerator[AnswerDelta, None]],
) -> AsyncGenerator[AnswerDelta, None]:
    ready: asyncio.Queue[AnswerDelta | Exception] = asyncio.Queue(_AHEAD)
    pumps = [child(_pump(stream, ready)) for stream in streams]
    running = len(pumps)
    try:
        while running:
            item = await ready.get()
            if isinstance(item, Exception):
                raise item
            running -= item.finished is not None
            yield item
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(
    stream: AsyncGenerator[AnswerDelta, None], ready: "asyncio.Queue[AnswerDelta | Exception]"
) -> None:
    try:
        async with aclosing(stream):
            async for delta in stream:
                await ready.put(delta)
    except Exception as err:  # any error must reach the reader, which would wait for ever
        await ready.put(err)


@dataclass
class WholeAnswer:
    """The joined parts of one answer."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    finished: Finished = field(default_factory=lambda: Finished(End(FinishReason.ABORT)))

    def add(self, delta: AnswerDelta) -> None:
        self.text += delta.text
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs += delta.prompt_logprobs.tokens
        if delta.finished is not None:
            self.finished = delta.finished


async def collect(deltas: AsyncGenerator[AnswerDelta, None], count: int) -> list[WholeAnswer]:
    """Wait for all `count` answers and return them in the order of the requests."""
    answers = [WholeAnswer() for _ in range(count)]
    async with aclosing(deltas):
        async for delta in deltas:
            answers[delta.index].add(delta)
    return answers
