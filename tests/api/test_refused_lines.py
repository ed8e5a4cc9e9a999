"""The line in the log of each request that is refused before its application hears of it."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from api.attacked_http import DEADLINE_S, GET, POST, SHORT_S, WAIT, reading_of, serving
from call_lines import Lines, kept_lines
from kit.polling import until

ID = b"X-Request-Id: mine\r\n"


@pytest.fixture
def lines() -> Iterator[Lines]:
    with kept_lines() as kept:
        yield kept


@pytest.mark.parametrize(
    ("limits", "said", "call", "status", "reason", "request_id"),
    [
        ({"header_s": SHORT_S}, b"GET /hea", "GET /hea", 408, "header_time", None),
        ({"header_s": SHORT_S}, b"GET /wait?a=b HTTP/1.1\r\n" + ID + b"A: b\r\n", "GET /wait", 408,
         "header_time", "mine"),
        ({"header_s": SHORT_S}, b"GE", "unread", 408, "header_time", None),
        ({"body_s": SHORT_S}, POST.replace(b"\r\n", b"\r\n" + ID, 1) + b"ab", "POST /echo", 408,
         "body_time", "mine"),
        ({"header_bytes": 2048}, b"GET /wait HTTP/1.1\r\n" + ID + b"A: " + b"a" * 4000,
         "GET /wait", 431, "header_size", "mine"),
        ({}, b"this is nothing\r\n\r\n", "unread", 400, "malformed", None),
    ],
    ids=["no header", "a slow header", "no path", "a slow body", "a large header", "no HTTP"],
)  # fmt: skip
async def test_a_request_that_the_port_refuses_leaves_one_line(
    limits: dict[str, Any], said: bytes, call: str, status: int, reason: str,
    request_id: str | None, lines: Lines,
) -> None:  # fmt: skip
    async with serving(**limits) as server:
        reply = await server.says(said)
        assert reply.startswith(b"HTTP/1.1 %d " % status)
    line = lines.only()
    assert (line["call"], line["status"], line["reason"]) == (call, status, reason)
    if request_id is not None:
        assert line["request_id"] == request_id
    assert b"x-request-id: %s\r\n" % line["request_id"].encode() in reply.lower()


async def test_a_connection_that_asks_nothing_leaves_no_line(lines: Lines) -> None:
    async with serving(header_s=SHORT_S) as server:
        assert (await server.says()).startswith(b"HTTP/1.1 408 ")
    assert not lines.all()


async def test_a_line_after_another_request_says_nothing_of_that_one(lines: Lines) -> None:
    async with serving(header_s=SHORT_S) as server:
        await server.says(
            WAIT.replace(b"/wait", b"/who").replace(b"\r\n", b"\r\n" + ID, 1), b"GET /h"
        )
    who, cut = lines.all()
    assert (who["call"], who["request_id"], who["status"]) == ("GET /who", "mine", 200)
    assert (cut["call"], cut["status"], cut["reason"]) == ("GET /h", 408, "header_time")
    assert cut["request_id"] != "mine"


async def test_requests_that_are_too_many_leave_lines(lines: Lines) -> None:
    async with serving(http_streams=1, connections=2, client_connections=2) as server:
        held, writer = await server.connect()
        writer.write(WAIT)
        await until(lambda: server.waiting == 1)
        reader, other = await server.connect()
        other.write(WAIT.replace(b"\r\n", b"\r\n" + ID, 1))
        await asyncio.wait_for(reader.readuntil(b"\r\n"), DEADLINE_S)
        await until(lambda: len(lines.all()) == 1)
        server.go_on.set()
        await asyncio.wait_for(held.readuntil(b"at last"), DEADLINE_S)
        writer.close()
        other.close()
    refused, answered = lines.all()
    assert (refused["call"], refused["status"], refused["reason"]) == (
        "GET /wait", 429, "overloaded"
    )  # fmt: skip
    assert refused["request_id"] == "mine" and answered["status"] == 200


async def test_a_connection_beyond_the_limit_leaves_a_line(lines: Lines) -> None:
    async with serving(client_connections=1) as server:
        held, writer = await server.connect()
        writer.write(WAIT)
        await until(lambda: server.waiting == 1)
        reply = await server.says(WAIT)
        assert reply.startswith(b"HTTP/1.1 429 ")
        assert (await server.says(GET)).startswith(b"HTTP/1.1 200 ")
        server.go_on.set()
        await asyncio.wait_for(held.readuntil(b"at last"), DEADLINE_S)
        writer.close()
    refused = lines.all()[0]
    assert (refused["call"], refused["status"], refused["reason"]) == (
        "GET /wait", 429, "overloaded"
    )  # fmt: skip


async def test_a_reader_who_is_cut_off_is_the_reason_in_the_line(lines: Lines) -> None:
    async with serving(write_s=SHORT_S) as server:
        _, writer = await server.connect()
        reading_of(writer).pause_reading()
        writer.write(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.wait_for(server.gone.wait(), DEADLINE_S)
        await until(lambda: bool(lines.all()))
        writer.transport.abort()
    line = lines.only()
    assert (line["status"], line["reason"]) == (200, "slow_reader")
