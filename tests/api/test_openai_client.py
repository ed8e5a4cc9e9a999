"""The real `openai` client against a real server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import openai
import pytest
from fake_backend import FakeBackend, Serve
from kit.narrowing import present
from openai import AsyncStream
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionPredictionContentParam

from baton.core.drafts import NO_DRAFTS, DraftCount, DraftUsage
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.text.tokenizer import Tokenizer

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]
SAYS = "naïve café 日本語 😀 done"


@asynccontextmanager
async def connected(serve: Serve) -> AsyncIterator[openai.AsyncOpenAI]:
    async with serve() as url:
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)
        async with client:
            yield client


async def test_a_chat_is_answered_whole(backend: FakeBackend, serve: Serve) -> None:
    backend.says = SAYS
    async with connected(serve) as client:
        reply = await client.chat.completions.create(model="toy", messages=HELLO)
    assert reply.object == "chat.completion"
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].message.content == SAYS
    assert reply.choices[0].finish_reason == "stop"
    assert reply.choices[0].logprobs is None
    (asked,) = backend.seen
    prompt = backend.tokenizer.decode(asked.prompt_ids, skip_special_tokens=False)
    assert prompt == "<s><|user|>hello<|end|><|assistant|>"
    usage = present(reply.usage)
    assert usage.prompt_tokens == len(asked.prompt_ids)
    assert present(usage.prompt_tokens_details).cached_tokens == 1
    assert present(reply.model_extra)["timings"]["ttft_us"] == 7


async def test_a_reply_says_which_memory_had_the_cached_tokens_where_asked_for(
    backend: FakeBackend, serve: Serve
) -> None:
    """The tokens of a prompt with several answers count once."""
    backend.cached_host = 1
    wanted: dict[str, bool]
    for wanted, expected in (
        ({}, None),
        ({"return_cached_tokens_details": False}, None),
        ({"return_cached_tokens_details": True}, {"device": 0, "host": 1}),
    ):
        async with connected(serve) as client:
            reply = await client.chat.completions.create(
                model="toy", messages=HELLO, n=2, extra_body=wanted
            )
        details = present(reply.model_extra).get("sglext", {}).get("cached_tokens_details")
        assert details == expected


async def test_a_streamed_chat_is_the_whole_chat_in_pieces(
    backend: FakeBackend, serve: Serve
) -> None:
    backend.says = SAYS
    async with connected(serve) as client:
        stream = await client.chat.completions.create(
            model="toy", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    *with_choice, last = chunks
    deltas = [chunk.choices[0].delta for chunk in with_choice]
    assert deltas[0].role == "assistant"
    assert deltas[0].content == ""
    assert "".join(delta.content or "" for delta in deltas) == SAYS
    assert len(deltas) > 5
    assert [c.choices[0].finish_reason for c in with_choice][-2:] == [None, "stop"]
    assert len({chunk.id for chunk in chunks}) == 1
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert all(chunk.usage is None for chunk in with_choice)
    assert last.choices == []
    usage = present(last.usage)
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert present(last.model_extra)["timings"]["ttft_us"] == 7


PREDICTED: ChatCompletionPredictionContentParam = {"type": "content", "content": SAYS}
IN_PARTS: ChatCompletionPredictionContentParam = {
    "type": "content",
    "content": [{"type": "text", "text": SAYS[:5]}, {"type": "text", "text": SAYS[5:]}],
}


async def test_a_prediction_goes_along_and_its_tokens_are_counted(
    backend: FakeBackend, serve: Serve
) -> None:
    backend.says = SAYS
    counts = DraftCount("ngram", 7, 1), DraftCount("prediction", 5, 3)
    backend.drafts = DraftUsage(4, counts)
    async with connected(serve) as client:
        chat = client.chat.completions
        one = await chat.create(model="toy", messages=HELLO, prediction=PREDICTED)
        two = await chat.create(model="toy", messages=HELLO, n=2, prediction=IN_PARTS)
        stream = await chat.create(
            model="toy",
            messages=HELLO,
            prediction=PREDICTED,
            stream=True,
            stream_options={"include_usage": True},
        )
        *_, last = [chunk async for chunk in stream]
        none = await chat.create(model="toy", messages=HELLO)
        backend.drafts = NO_DRAFTS  # nothing was verified, as where drafts are off
        off = await chat.create(model="toy", messages=HELLO, prediction=PREDICTED)
    ids = tuple(backend.tokenizer.encode(SAYS, add_special_tokens=False))
    assert [asked.prediction_ids for asked in backend.seen] == [ids] * 4 + [(), ids]
    assert present(none.usage).completion_tokens_details is None
    found = []
    for usage in (one.usage, two.usage, last.usage, off.usage):
        details = present(present(usage).completion_tokens_details)
        found.append((details.accepted_prediction_tokens, details.rejected_prediction_tokens))
    assert found == [(3, 2), (6, 4), (3, 2), (0, 0)]


@pytest.mark.parametrize(
    ("prediction", "param", "said"),
    [
        ({"type": "content", "content": "hello " * 100}, "prediction.content", "tokens"),
        ({"type": "content", "content": [{"type": "image"}]}, "prediction.content", "type 'text'"),
        ({"type": "content", "content": None}, "prediction.content", "required"),
        ({"type": "content", "content": 3}, "prediction.content", "expected a string"),
        ({"type": "text", "content": "a"}, "prediction.type", "'content'"),
        ({"type": "content", "text": "a"}, "prediction.content", "required"),
        ("hello", "prediction", "object"),
    ],
)
async def test_a_bad_prediction_is_refused_by_name(
    prediction: object, param: str, said: str, serve: Serve
) -> None:
    async with connected(serve) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(
                model="toy", messages=HELLO, extra_body={"prediction": prediction}
            )
    assert caught.value.param == param
    assert said in caught.value.message


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("per_event", [1, 3, 100])
async def test_a_stop_string_across_tokens_never_shows_unless_included(
    backend: FakeBackend, serve: Serve, include: bool, per_event: int
) -> None:
    backend.says = "one STtwo STOPPED"
    backend.per_event = per_event
    async with connected(serve) as client:
        stream = await client.completions.create(
            model="toy",
            prompt="x",
            stop=["STOP"],
            max_tokens=50,
            stream=True,
            extra_body={"include_stop_str_in_output": include},
        )
        chunks = [chunk async for chunk in stream]
        whole = await client.completions.create(
            model="toy",
            prompt="x",
            stop="STOP",
            max_tokens=50,
            extra_body={"include_stop_str_in_output": include},
        )
    expected = "one STtwo STOP" if include else "one STtwo "
    assert "".join(chunk.choices[0].text for chunk in chunks) == expected
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert whole.choices[0].text == expected


async def test_several_answers_to_several_prompts_keep_their_order_and_differ_in_seed(
    backend: FakeBackend, serve: Serve
) -> None:
    async with connected(serve) as client:
        reply = await client.completions.create(
            model="toy", prompt=["hello", "world"], n=2, seed=-1, max_tokens=50
        )
        stream = await client.completions.create(
            model="toy", prompt=["hello", "world"], n=2, seed=-1, max_tokens=50, stream=True
        )
        pieces = {i: "" for i in range(4)}
        async for chunk in stream:
            pieces[chunk.choices[0].index] += chunk.choices[0].text
    assert [c.text for c in reply.choices] == ["hello", "hello", "world", "world"]
    assert list(pieces.values()) == ["hello", "hello", "world", "world"]
    seeds = [request.sampling.seed for request in backend.seen]
    assert seeds[0] == 2**64 - 1
    assert seeds[:2] == seeds[2:4] == seeds[4:6]
    assert seeds[0] != seeds[1]
    assert len({request.request_id for request in backend.seen}) == 8
    answered = sum(len(backend.seen[i].prompt_ids) for i in (0, 2))
    usage = present(reply.usage)
    assert (usage.prompt_tokens, usage.completion_tokens) == (answered, 2 * answered)


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_with_logprobs_scores_the_prompt_and_the_answer(
    backend: FakeBackend, serve: Serve, stream: bool
) -> None:
    async with connected(serve) as client:
        made = await client.completions.create(
            model="toy", prompt="hello world", echo=True, logprobs=2, max_tokens=50, stream=stream
        )
        replies = [r async for r in made] if isinstance(made, AsyncStream) else [made]
    choices = [reply.choices[0] for reply in replies]
    assert "".join(choice.text for choice in choices) == "hello worldhello world"
    scores = [present(choice.logprobs) for choice in choices]
    tokens = [token for each in scores for token in each.tokens or ()]
    assert "".join(tokens) == "hello worldhello world"
    offsets = [offset for each in scores for offset in each.text_offset or ()]
    assert offsets == [len("".join(tokens[:i])) for i in range(len(tokens))]
    logprobs = [p for each in scores for p in each.token_logprobs or ()]
    assert logprobs == [None] + [-1.0] * (len(tokens) - 1)
    tops = [top for each in scores for top in each.top_logprobs or ()]
    assert tops[0] is None
    assert tops[1][tokens[1]] == -1.0
    assert sorted(tops[1].values()) == [-2.0, -1.0]


@pytest.mark.parametrize("stream", [False, True])
async def test_scoring_alone_answers_with_the_prompt(
    backend: FakeBackend, serve: Serve, stream: bool
) -> None:
    async with connected(serve) as client:
        made = await client.completions.create(
            model="toy", prompt="hello", echo=True, logprobs=0, max_tokens=0, stream=stream
        )
        replies = [r async for r in made] if isinstance(made, AsyncStream) else [made]
    assert "".join(reply.choices[0].text for reply in replies) == "hello"
    assert replies[-1].choices[0].finish_reason == "length"


async def test_chat_logprobs_give_the_exact_bytes_of_partial_characters(
    backend: FakeBackend, serve: Serve
) -> None:
    backend.says = "😀é"
    async with connected(serve) as client:
        reply = await client.chat.completions.create(
            model="toy", messages=HELLO, logprobs=True, top_logprobs=1
        )
        stream = await client.chat.completions.create(
            model="toy", messages=HELLO, logprobs=True, top_logprobs=1, stream=True
        )
        streamed = [
            entry
            async for chunk in stream
            if chunk.choices[0].logprobs
            for entry in chunk.choices[0].logprobs.content or ()
        ]
    entries = present(present(reply.choices[0].logprobs).content)
    assert b"".join(bytes(present(entry.bytes)) for entry in entries) == "😀é".encode()
    assert entries == streamed
    assert [e.top_logprobs[0].token for e in entries] == [e.token for e in entries]


async def test_an_error_before_the_first_token_has_its_own_status(
    backend: FakeBackend, serve: Serve
) -> None:
    backend.fail_first = ApiError(ErrorCode.OVERLOADED, "the queue is full", retry_after_s=1.2)
    async with connected(serve) as client:
        with pytest.raises(openai.RateLimitError, match="queue is full") as caught:
            await client.completions.create(model="toy", prompt="x", stream=True)
        assert caught.value.response.headers["retry-after"] == "2"
        backend.fail_first = None
        assert (await client.completions.create(model="toy", prompt="x")).choices[0].text == "x"


async def test_an_error_after_the_first_token_ends_the_stream_with_an_error(
    backend: FakeBackend, serve: Serve
) -> None:
    backend.fail_after = 2
    backend.failure = ApiError(ErrorCode.UNAVAILABLE, "decode-1 was lost")
    async with connected(serve) as client:
        stream = await client.completions.create(model="toy", prompt=[65, 66, 67, 68], stream=True)
        got = []
        with pytest.raises(openai.APIError, match="decode-1 was lost"):
            async for chunk in stream:
                got.append(chunk.choices[0].text)
    assert "".join(got) == backend.tokenizer.decode([65, 66])


@pytest.mark.parametrize("prompt", ["x", ["x", "y"]])
@pytest.mark.parametrize("hold_after", [0, 1])
async def test_a_client_that_leaves_a_stream_cancels_its_requests(
    backend: FakeBackend, serve: Serve, prompt: str | list[str], hold_after: int
) -> None:
    backend.hold_after = hold_after
    backend.says = "hello hello"
    async with connected(serve) as client:

        async def read() -> None:
            stream = await client.completions.create(model="toy", prompt=prompt, stream=True)
            async for _ in stream:
                pass

        await leave_while_holding(backend, read())
        assert sorted(backend.cancelled) == sorted(r.request_id for r in backend.seen)


async def test_a_client_that_leaves_before_the_reply_cancels_its_request(
    backend: FakeBackend, serve: Serve
) -> None:
    backend.hold_after = 1
    async with connected(serve) as client:
        await leave_while_holding(backend, client.completions.create(model="toy", prompt="x"))
        assert backend.cancelled == [backend.seen[0].request_id]
        backend.hold_after = None
        assert (await client.completions.create(model="toy", prompt="x")).choices[0].text == "x"


async def leave_while_holding(backend: FakeBackend, call) -> None:  # type: ignore[no-untyped-def]
    """Drop the connection once the backend holds, and wait until it hears of every request."""
    reading = asyncio.create_task(call)
    await asyncio.wait_for(backend.holding.wait(), 10)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    while len(backend.cancelled) < len(backend.seen):
        backend.was_cancelled.clear()
        await asyncio.wait_for(backend.was_cancelled.wait(), 10)


async def test_models_are_listed_and_found(tokenizer: Tokenizer, serve: Serve) -> None:
    async with connected(serve) as client:
        listed = [model async for model in client.models.list()]
        assert [model.id for model in listed] == ["toy"]
        assert (await client.models.retrieve("toy")).owned_by == "baton"
        with pytest.raises(openai.NotFoundError, match="not served here; expected toy"):
            await client.models.retrieve("other")
