"""The tokens of an answer on their way to who reads them: by interval, and joined while the loop is
behind."""

import asyncio
import json
import random
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import httpx
import pytest
from fake_backend import FakeBackend
from kit.narrowing import of_type

from baton.api.answer_queue import AnswerQueue, StreamPace
from baton.api.backend import GenerateRequest, TokenEvent
from baton.api.http import make_app
from baton.api.sglang.routes import sglang_routes
from baton.api.text_service import TextService
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.core.finish import End, Finished, FinishReason
from baton.core.logprobs import TokenLogprob

WAIT_S = 60.0
DONE = Finished(End(FinishReason.LENGTH))


def token(index: int) -> TokenEvent:
    return TokenEvent(index, (index + 7,), (TokenLogprob(index + 7, -0.5),))


async def read(queue: AnswerQueue, busy_s: float = 0.0) -> list[TokenEvent]:
    """Return the events up to the end. busy_s: each keeps the event loop busy for so long."""
    found = []
    async with asyncio.timeout(WAIT_S):
        while isinstance(event := await queue.next(), TokenEvent):
            time.sleep(busy_s)  # the loop is busy
            found.append(event)
    assert event is DONE
    return found


def joined(events: list[TokenEvent]) -> tuple[list[int], list[TokenLogprob]]:
    ids: list[int] = []
    for event in events:
        assert event.first_index == len(ids)
        ids += event.token_ids
    return ids, [each for event in events for each in event.logprobs]


@pytest.mark.parametrize("interval", [1, 2, 5, 64])
@pytest.mark.parametrize("seed", range(5))
async def test_all_but_the_first_and_last_event_have_the_interval(interval: int, seed: int) -> None:
    rng, queue = random.Random(seed), AnswerQueue(StreamPace(interval))
    count = rng.randint(1, 300)
    reader = asyncio.create_task(read(queue))
    for index in range(count):
        queue.put(token(index))
        for _ in range(rng.choice([0, 1, 3])):
            await asyncio.sleep(0)
    queue.end(DONE)
    events = await reader
    assert joined(events) == joined([token(index) for index in range(count)])
    assert all(len(event.token_ids) >= interval for event in events[1:-1])


async def test_the_first_token_waits_for_no_others() -> None:
    queue = AnswerQueue(StreamPace(64))
    reader = asyncio.create_task(queue.next())
    await asyncio.sleep(0)
    queue.put(token(0))
    assert await asyncio.wait_for(reader, WAIT_S) == token(0)


@pytest.mark.parametrize("end", [DONE, ApiError(ErrorCode.CANCELLED, "it was aborted")])
async def test_the_end_waits_for_neither_tokens_nor_a_pause(end: Finished | ApiError) -> None:
    hours = iter(range(0, 10**9, 3600))
    pace = StreamPace(2, clock=lambda: next(hours))
    queue, other = AnswerQueue(pace), AnswerQueue(pace)
    for each in (queue, other):
        each.put(token(0))
        await each.next()
    reader = asyncio.create_task(other.next())
    await asyncio.sleep(0)
    other.put(token(1))
    other.put(token(2))
    second = of_type(TokenEvent, await asyncio.wait_for(reader, WAIT_S))
    assert second.first_index == 1  # then the pause begins
    reader = asyncio.create_task(queue.next())
    await asyncio.sleep(0)
    queue.put(token(1))
    queue.put(token(2))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not reader.done()
    queue.end(end)
    event = await asyncio.wait_for(reader, WAIT_S)
    assert isinstance(event, TokenEvent)
    assert event.token_ids == (8, 9)
    if isinstance(end, Finished):
        assert await queue.next() is end
    else:
        with pytest.raises(ApiError):
            await queue.next()


@pytest.mark.parametrize(("busy_s", "most"), [(0.0, 64), (0.05, 8)])
async def test_a_loop_that_is_behind_sends_the_tokens_of_several_steps_together(
    busy_s: float, most: int
) -> None:
    queue = AnswerQueue(StreamPace())
    reader = asyncio.create_task(read(queue, busy_s))
    await asyncio.sleep(0)
    for index in range(64):
        queue.put(token(index))
        for _ in range(4):
            await asyncio.sleep(0)
    queue.end(DONE)
    events = await reader
    assert joined(events)[0] == joined([token(index) for index in range(64)])[0]
    assert len(events) <= most


async def test_a_reader_that_was_cancelled_is_not_woken() -> None:
    pace = StreamPace()
    queue, other = AnswerQueue(pace), AnswerQueue(pace)
    for each in (queue, other):
        each.put(token(0))
        await each.next()
    reader, left = asyncio.create_task(queue.next()), asyncio.create_task(other.next())
    await asyncio.sleep(0)
    other.put(token(1))
    queue.put(token(1))
    left.cancel()
    assert await asyncio.wait_for(reader, WAIT_S) == token(1)
    assert await asyncio.wait_for(other.next(), WAIT_S) == token(1)


class PacedBackend(FakeBackend):
    """Gives out its events as a router's streams do."""

    interval = 1

    async def generate(
        self, request: GenerateRequest
    ) -> AsyncGenerator[TokenEvent | Finished, None]:
        queue = AnswerQueue(StreamPace(self.interval, clock=lambda: 0.0))  # without pauses

        async def pump() -> None:
            async with aclosing(FakeBackend.generate(self, request)) as events:
                async for event in events:
                    if isinstance(event, TokenEvent):
                        queue.put(event)
                    else:
                        queue.end(event)
                    for _ in range(8):
                        await asyncio.sleep(0)

        pumping = asyncio.create_task(pump())
        while isinstance(event := await queue.next(), TokenEvent):
            yield event
        yield event
        await pumping


SAYS = "Grüße, 日本語 and more words, one after the other, until there are enough of them."
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 50}
STREAMS: dict[str, dict[str, Any]] = {
    "/v1/completions": {
        "prompt": "hi", "logprobs": 2, "max_tokens": 50, "return_token_ids": True,
        "stream_options": {"include_usage": True},
    },
    "/v1/chat/completions": {
        **CHAT, "logprobs": True, "top_logprobs": 2, "stream_options": {"include_usage": True},
    },
    "/generate": {
        "text": "hi", "return_logprob": True, "sampling_params": {"max_new_tokens": 50},
    },
    "/v1/messages": CHAT,
    "/v1/responses": {"input": "hi", "max_output_tokens": 50},
}  # fmt: skip
MADE_UP = {"id", "item_id", "created", "created_at", "completed_at", "sequence_number"}
TEXTS = {"text", "content", "delta"}


def without_ids(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in MADE_UP}


def folded(events: list[Any], name: str = "") -> Any:
    """Return events in one: texts and lists joined, of all else the last."""
    events = [each for each in events if each is not None]
    if events and all(isinstance(each, dict) for each in events):
        names = dict.fromkeys(name for each in events for name in each)
        return {name: folded([each.get(name) for each in events], name) for name in names}
    if events and all(isinstance(each, list) for each in events):
        whole = [entry for each in events for entry in each]
        return folded(whole) if name == "choices" else whole
    if name in TEXTS and all(isinstance(each, str) for each in events):
        return "".join(events)
    return events[-1:]


async def streamed(
    backend: PacedBackend, text: TextService, path: str, interval: int
) -> tuple[int, Any]:
    """Return the number of a stream's events, and what they say together."""
    backend.interval = interval
    app = make_app(backend, text, more_routes=sglang_routes(backend, text, incremental=True))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://toy") as client:
        reply = await client.post(path, json=STREAMS[path] | {"stream": True})
    assert reply.status_code == 200, reply.text
    lines = [line[6:] for line in reply.text.split("\n") if line.startswith("data: {")]
    events = [json.loads(line, object_hook=without_ids) for line in lines]
    kinds = dict.fromkeys(each.get("type") for each in events)
    return len(events), {
        kind: folded([each for each in events if each.get("type") == kind and kind not in LONG])
        for kind in kinds
    }


LONG = {"response.created", "response.in_progress"}


@pytest.mark.parametrize("path", STREAMS)
async def test_a_stream_says_the_same_at_any_interval(text: TextService, path: str) -> None:
    backend = PacedBackend(text.tokenizer, says=SAYS)
    single, whole = await streamed(backend, text, path, 1)
    for interval in (3, 8, 256):
        events, found = await streamed(backend, text, path, interval)
        assert events < single
        assert found == whole
