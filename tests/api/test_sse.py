"""The bytes of a stream, as any client reads them."""

import json

import httpx
import pytest
from fake_backend import FakeBackend, Serve

from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError


async def stream_of(serve: Serve, path: str, body: dict[str, object]) -> httpx.Response:
    async with serve() as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        return await client.post(path, json=body | {"stream": True})


async def test_a_stream_is_data_events_and_ends_with_done(
    backend: FakeBackend, serve: Serve
) -> None:
    backend.says = "two\nlines 日"
    reply = await stream_of(serve, "/v1/completions", {"prompt": "x"})
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["cache-control"] == "no-cache"
    assert len(reply.headers["x-request-id"]) == 32
    *events, done, nothing = reply.text.split("\n\n")
    assert (done, nothing) == ("data: [DONE]", "")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "two\nlines 日"
    assert all("usage" not in chunk for chunk in chunks)


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/completions", {"prompt": "x", "max_tokens": 60}), ("/v1/responses", {"input": "x"})],
)
async def test_an_event_is_one_line_for_clients_that_split_at_unicode_line_ends(
    backend: FakeBackend, serve: Serve, path: str, body: dict[str, object]
) -> None:
    backend.says = "a\u0085b\u2028c\u2029d “e” \x1c\x0b"
    reply = await stream_of(serve, path, body)
    lines = reply.text.splitlines()
    assert all(line.startswith(("data: ", "event: ")) for line in lines if line)
    answer = "".join(
        chunk["choices"][0]["text"] if "choices" in chunk else chunk.get("delta", "")
        for chunk in (json.loads(line[6:]) for line in lines if line.startswith("data: {"))
    )
    assert answer == backend.says


async def test_an_error_in_a_stream_is_an_event_and_still_ends_with_done(
    backend: FakeBackend, serve: Serve
) -> None:
    backend.fail_after = 1
    backend.failure = ApiError(ErrorCode.UNAVAILABLE, "lost")
    reply = await stream_of(serve, "/v1/completions", {"prompt": [65, 66]})
    assert reply.status_code == 200
    *_, error, done, _ = reply.text.split("\n\n")
    assert json.loads(error.removeprefix("data: "))["error"]["message"] == "lost"
    assert done == "data: [DONE]"


async def test_token_ids_come_beside_the_text_where_asked_for(
    backend: FakeBackend, serve: Serve
) -> None:
    backend.says = "naïve 😀"
    body = {"prompt": "x", "max_tokens": 40, "return_token_ids": True}
    reply = await stream_of(serve, "/v1/completions", body)
    events = reply.text.split("\n\n")[:-2]
    choices = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]
    ids = [i for choice in choices for i in choice["token_ids"]]
    assert backend.tokenizer.decode(ids) == "".join(c["text"] for c in choices) == "naïve 😀"


@pytest.mark.parametrize("usage", [True, False])
async def test_a_streams_end_says_which_memory_had_the_cached_tokens_where_asked_for(
    backend: FakeBackend, serve: Serve, usage: bool
) -> None:
    backend.cached_host = 1
    body: dict[str, object] = {"prompt": ["hello", "you"], "return_cached_tokens_details": True}
    body["stream_options"] = {"include_usage": usage}
    reply = await stream_of(serve, "/v1/completions", body)
    events = [json.loads(event.removeprefix("data: ")) for event in reply.text.split("\n\n")[:-2]]
    assert [event for event in events if "sglext" in event] == events[-1:]
    assert events[-1]["sglext"] == {"cached_tokens_details": {"device": 0, "host": 2}}
    assert ("timings" in events[-1]) is usage


async def test_every_chunk_of_a_stream_with_usage_has_the_field(serve: Serve) -> None:
    body: dict[str, object] = {"prompt": "hello", "stream_options": {"include_usage": True}}
    reply = await stream_of(serve, "/v1/completions", body)
    events = reply.text.split("\n\n")[:-2]
    usages = [json.loads(event.removeprefix("data: "))["usage"] for event in events]
    assert usages[:-1] == [None] * (len(events) - 1)
    assert usages[-1]["prompt_tokens_details"] == {"cached_tokens": 1}
