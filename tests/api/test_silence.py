"""Streams in which no token comes for a while."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fake_backend import FakeBackend, Serve

from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError

MESSAGES = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9}
PING = 'event: ping\ndata: {"type":"ping"}'
COMMENT = ": ping"
STREAMS: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/completions", {"prompt": "x"}, COMMENT),
    ("/v1/chat/completions", MESSAGES, COMMENT),
    ("/v1/responses", {"input": "x"}, COMMENT),
    ("/v1/messages", MESSAGES, PING),
    ("/generate", {"text": "x"}, COMMENT),
]
ENDED = "the request was aborted"


async def events_of(reply: httpx.Response) -> AsyncIterator[str]:
    """Yield each event of a stream, with its names."""
    lines: list[str] = []
    async for line in reply.aiter_lines():
        if line:
            lines.append(line)
        else:
            yield "\n".join(lines)
            lines = []


async def silent_stream(
    backend: FakeBackend, serve: Serve, path: str, body: dict[str, object], ping: str
) -> tuple[list[str], int]:
    """Return the events of a stream that is silent until three pings in a row have come, and is
    then ended; and the place of the first of the three.
    """
    found: list[str] = []
    async with serve() as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        async with client.stream("POST", path, json=body | {"stream": True}) as reply:
            assert reply.status_code == 200
            assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert len(reply.headers["x-request-id"]) == 32
            async for event in events_of(reply):
                found.append(event)
                if found[-3:] == [ping] * 3:
                    await backend.abort(None)
    return found, max(at for at in range(len(found)) if found[at : at + 3] == [ping] * 3)


def data_of(event: str) -> dict[str, object]:
    """Return the JSON of an event."""
    found: dict[str, object] = json.loads(event.rpartition("data: ")[2])
    return found


@pytest.mark.parametrize(("path", "body", "ping"), STREAMS)
async def test_a_stream_without_a_first_token_begins_and_pings_and_may_fail_later(
    backend: FakeBackend, serve_pinging: Serve, path: str, body: dict[str, object], ping: str
) -> None:
    backend.hold_after = 0
    events, at = await silent_stream(backend, serve_pinging, path, body, ping)
    assert events[: at + 3] == [ping] * (at + 3), "nothing else comes before the first token"
    rest = [event for event in events[at:] if event != ping]
    if path == "/v1/messages":
        (failed,) = rest
        assert failed.startswith("event: error\n")
        assert data_of(failed)["error"] == {"type": "api_error", "message": ENDED}
    elif path == "/v1/responses":
        begun = [data_of(event) for event in rest]
        assert [event["type"] for event in begun] == [
            "response.created",
            "response.in_progress",
            "response.failed",
        ]
        assert [event["sequence_number"] for event in begun] == [0, 1, 2]
        assert begun[-1]["response"]["error"]["message"] == ENDED  # type: ignore[index]
    elif path == "/generate":  # an abort is a finish there
        last, done = rest
        assert data_of(last)["meta_info"]["finish_reason"]["type"] == "abort"  # type: ignore[index]
        assert done == "data: [DONE]"
    else:
        failed, done = rest
        assert data_of(failed)["error"]["message"] == ENDED  # type: ignore[index]
        assert done == "data: [DONE]"


@pytest.mark.parametrize(("path", "body", "ping"), STREAMS)
async def test_a_stream_that_falls_silent_pings_behind_its_tokens(
    backend: FakeBackend, serve_pinging: Serve, path: str, body: dict[str, object], ping: str
) -> None:
    backend.says, backend.hold_after = "abc", 2
    events, at = await silent_stream(backend, serve_pinging, path, body, ping)
    before = "".join(event for event in events[:at] if event != ping)
    assert "a" in before and at > 1, "tokens came before the silence"
    assert ENDED in events[-1] or ENDED in events[-2]


async def test_an_error_before_the_first_ping_keeps_its_status(
    backend: FakeBackend, serve: Serve
) -> None:
    backend.fail_first = ApiError(ErrorCode.UNAVAILABLE, "nobody is there")
    async with serve() as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        for path, body, _ in STREAMS:
            reply = await client.post(path, json=body | {"stream": True})
            assert reply.status_code == 503, path
