"""Attacks on the HTTP port, over real sockets: each deadline and limit, and who notices."""

import asyncio

import httpx
import pytest
from api.attacked_http import DEADLINE_S, GET, POST, SHORT_S, WAIT, error_of, reading_of, serving
from kit.polling import until

from baton.api.access.client_limits import ClientLimits, Refusal
from baton.api.server.buffered_protocol import READ_BYTES
from baton.api.server.http_protocol import MAX_PIPELINED, GuardedHttp


@pytest.mark.parametrize("parts", [(b"GET /hea",), (GET[:-2],), (b"\r\n", b"\r\n")])
async def test_a_header_that_does_not_end_is_answered_with_408(parts: tuple[bytes, ...]) -> None:
    async with serving(header_s=SHORT_S) as server:
        reply = await server.says(*parts)
        assert reply.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
        assert error_of(reply)["code"] == "deadline_exceeded"
        assert server.refusals(Refusal.HEADER_TIME) == 1


async def test_a_connection_that_says_nothing_is_told_why_it_is_closed() -> None:
    """Give a client that is busy with a burst a reply, though its request comes later."""
    async with serving(header_s=SHORT_S) as server:
        reply = await server.says()
        assert reply.startswith(b"HTTP/1.1 408 ") and "header was not" in error_of(reply)["message"]
        assert server.refusals(Refusal.HEADER_TIME) == 1
        await until(lambda: server.connections == 0)


async def test_a_header_that_trickles_has_one_deadline() -> None:
    async with serving(header_s=SHORT_S) as server:
        reader, writer = await server.connect()
        writer.write(b"GET /health HTTP/1.1\r\n")
        for number in range(10_000):
            if reader.at_eof() or writer.is_closing():
                break
            writer.write(b"X-%d: y\r\n" % number)
            await asyncio.sleep(SHORT_S / 10)  # a slow client
        else:
            pytest.fail("the server waited for ever")
        writer.close()
        assert server.refusals(Refusal.HEADER_TIME) == 1


async def test_the_second_request_of_a_connection_has_its_own_deadline() -> None:
    async with serving(header_s=SHORT_S) as server:
        reply = await server.says(GET, GET[:9])
        assert reply.startswith(b"HTTP/1.1 200 OK\r\n") and b"HTTP/1.1 408 " in reply


def test_an_idle_connection_outlives_those_of_clients() -> None:
    """A request over one that the server is about to close fails without an answer."""
    expiry = httpx.Limits().keepalive_expiry
    assert expiry is not None and expiry < ClientLimits().idle_s


async def test_empty_lines_do_not_keep_an_idle_connection_open() -> None:
    async with serving(header_s=SHORT_S, idle_s=DEADLINE_S) as server:
        reader, writer = await server.connect()
        writer.write(GET)
        await asyncio.wait_for(reader.readuntil(b"ok"), DEADLINE_S)
        writer.write(b"\r\n")
        await asyncio.wait_for(reader.read(), DEADLINE_S)
        writer.close()
        assert server.refusals(Refusal.HEADER_TIME) == 1


async def test_a_body_that_does_not_end_is_answered_with_408() -> None:
    async with serving(body_s=SHORT_S) as server:
        reply = await server.says(POST + b"abc")
        assert reply.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
        assert "body" in error_of(reply)["message"]
        assert server.refusals(Refusal.BODY_TIME) == 1
        await asyncio.wait_for(server.gone.wait(), DEADLINE_S)


async def test_a_body_after_its_answer_does_not_keep_the_connection() -> None:
    async with serving(body_s=SHORT_S) as server:
        head = b"POST /refuse HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        reply = await server.says(head + b"3\r\nabc\r\n")
        assert reply.startswith(b"HTTP/1.1 401 ") and reply.count(b"HTTP/1.1") == 1
        assert server.refusals(Refusal.BODY_TIME) == 1


@pytest.mark.parametrize(
    "flood",
    [
        b"X: " + b"a" * 100_000,
        b"".join(b"X-%d: y\r\n" % number for number in range(1000)) + b"\r\n",
        b"X: " + b"a" * 3000 + b"\r\n\r\n",
    ],
    ids=["endless", "many", "long"],
)
async def test_too_much_header_is_answered_with_431(flood: bytes) -> None:
    async with serving(header_bytes=2048) as server:
        reply = await server.says(b"GET /health HTTP/1.1\r\nHost: x\r\n" + flood)
        assert reply.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
        assert error_of(reply)["code"] == "too_large"
        assert server.refusals(Refusal.HEADER_SIZE) == 1


async def test_a_long_path_and_endless_trailers_are_refused_too() -> None:
    async with serving(header_bytes=2048) as server:
        reply = await server.says(b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\n\r\n")
        assert reply.startswith(b"HTTP/1.1 431 ")
        head = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        reader, writer = await server.connect()
        writer.write(head + b"3\r\nabc\r\n0\r\nX: ")
        await until(lambda: server.echoing == 1)
        writer.write(b"a" * 5000)
        reply = await asyncio.wait_for(reader.read(), DEADLINE_S)
        assert reply.startswith(b"HTTP/1.1 431 ")
        writer.close()
        assert server.refusals(Refusal.HEADER_SIZE) == 2


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /health HTTP/0.9\r\nHost: x\r\n\r\n",
        b"GET /health HTTP/2.0\r\nHost: x\r\n\r\n",
        b"GET /health HTTP/2.0\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
    ],
    ids=["TLS", "0.9", "2.0", "2.0 upgraded"],
)
async def test_what_is_no_http_is_answered_with_400(sent: bytes) -> None:
    async with serving() as server:
        reply = await server.says(sent)
        assert reply.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert error_of(reply)["code"] == "invalid_request"
        assert server.refusals(Refusal.MALFORMED) == 1


async def test_a_pipeline_is_bounded_and_what_it_holds_is_answered() -> None:
    async with serving() as server:
        reader, writer = await server.connect()
        writer.write(WAIT + POST + b"12345" + GET * 100)
        await until(lambda: server.refusals(Refusal.PIPELINE) == 1)
        writer.write(GET * 100)
        server.go_on.set()
        reply = await asyncio.wait_for(reader.read(), DEADLINE_S)
        writer.close()
        assert reply.count(b"HTTP/1.1 200 OK\r\n") == 1 + MAX_PIPELINED
        assert b"at last" in reply and b"12345" in reply
        head, _, refused = reply.partition(b"HTTP/1.1 429 ")
        assert b"connection: close" in refused and b"HTTP/1.1" not in refused
        assert (
            "8 requests wait on this connection" in error_of(b"HTTP/1.1 429 " + refused)["message"]
        )
        assert b"connection: close" not in head


async def test_a_pipelining_client_that_leaves_ends_its_first_answer() -> None:
    async with serving() as server:
        reader, writer = await server.connect()
        writer.write(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n" + GET)
        await asyncio.wait_for(reader.readexactly(1000), DEADLINE_S)
        writer.transport.abort()
        await asyncio.wait_for(server.gone.wait(), DEADLINE_S)


async def test_a_client_that_does_not_read_is_cut_off_and_others_are_served() -> None:
    async with serving(write_s=SHORT_S) as server:
        reader, writer = await server.connect()
        reading_of(writer).pause_reading()
        writer.write(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await server.health() == 200
        await asyncio.wait_for(server.gone.wait(), DEADLINE_S)
        assert server.refusals(Refusal.SLOW_READER) == 1
        assert await server.health() == 200
        writer.transport.abort()
        assert reader is not None


async def test_an_answer_that_nobody_fetches_does_not_keep_a_closing_connection() -> None:
    async with serving(write_s=SHORT_S, idle_s=SHORT_S) as server:
        _, writer = await server.connect()
        reading_of(writer).pause_reading()
        size = 32 << 20  # more than both kernels' buffers
        head = b"POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % size + bytes(size))
        await until(lambda: server.refusals(Refusal.SLOW_READER) == 1)
        await until(lambda: server.connections == 0)
        writer.transport.abort()


async def test_a_steady_reader_may_take_longer_than_the_deadline() -> None:
    async with serving(write_s=SHORT_S) as server:
        reader, writer = await server.connect()
        writer.write(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
        began = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() - began < 4 * SHORT_S:
            assert await asyncio.wait_for(reader.read(1 << 20), DEADLINE_S)
        assert server.refusals(Refusal.SLOW_READER) == 0
        writer.transport.abort()


async def test_a_client_that_has_caught_up_is_not_cut_off() -> None:
    async with serving(write_s=SHORT_S, idle_s=DEADLINE_S) as server:
        reader, writer = await server.connect()
        size = 16 << 20  # more than both kernels' buffers, so that the server has to wait
        head = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size
        writer.write(head + bytes(size))
        reply = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), DEADLINE_S)
        assert reply.startswith(b"HTTP/1.1 200 ")
        await asyncio.wait_for(reader.readexactly(size), DEADLINE_S)
        await asyncio.sleep(3 * SHORT_S)  # an idle client
        writer.write(GET)
        assert await asyncio.wait_for(reader.readuntil(b"ok"), DEADLINE_S)
        assert server.refusals(Refusal.SLOW_READER) == 0
        writer.close()


async def test_a_large_body_is_read_in_bounded_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    received = GuardedHttp.data_received

    def counted(self: GuardedHttp, data: bytes) -> None:
        read.append(len(data))
        received(self, data)

    monkeypatch.setattr(GuardedHttp, "data_received", counted)
    body = bytes(4 << 20)
    async with serving() as server:
        reply = await server.says(
            b"POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
            % len(body),
            body,
        )
    assert reply.startswith(b"HTTP/1.1 200 ") and reply.endswith(body)
    assert len(read) > 1 and max(read) <= READ_BYTES
