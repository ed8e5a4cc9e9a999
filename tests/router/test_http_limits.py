"""Attacks on the HTTP port, over real sockets: each deadline and limit, and who notices."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from https_certificates import TestAuthority
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from baton.api.client_limits import ClientLimits, Refusal
from baton.api.client_metrics import ClientMetrics
from baton.router.client_guard import ClientGuard
from baton.router.http_server import HttpServer
from baton.rpc.client_tls import ClientTls

DEADLINE_S = 60.0
"""The deadline of every wait; only a broken server reaches it."""
SHORT_S = 0.2
GET = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"
WAIT = b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n"
LINE = b"x" * 65536


@dataclass
class Server:
    """A server under attack, and what its application saw."""

    port: int = 0
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # a request lost its client
    go_on: asyncio.Event = field(default_factory=asyncio.Event)  # `/wait` answers
    echoing: int = 0  # requests that `/echo` has begun
    waiting: int = 0  # requests that `/wait` has begun

    def app(self) -> Starlette:
        async def echo(request: Request) -> Response:
            self.echoing += 1
            try:
                return Response(await request.body())
            except ClientDisconnect:
                self.gone.set()
                raise

        async def wait(_: Request) -> Response:
            self.waiting += 1
            await asyncio.wait_for(self.go_on.wait(), DEADLINE_S)
            return PlainTextResponse("at last")

        async def lines() -> AsyncIterator[bytes]:
            try:
                while True:
                    yield LINE
                    await asyncio.sleep(0)
            finally:
                self.gone.set()

        async def stream(_: Request) -> Response:
            return StreamingResponse(lines())

        async def refuse(_: Request) -> Response:
            return PlainTextResponse("no", 401)

        async def health(_: Request) -> Response:
            return PlainTextResponse("ok")

        routes = [("/echo", echo), ("/wait", wait), ("/stream", stream), ("/refuse", refuse)]
        return Starlette(
            routes=[
                Route("/health", health),
                *(Route(path, work, methods=["GET", "POST"]) for path, work in routes),
            ]
        )

    def refusals(self, reason: Refusal) -> float:
        labels = {"reason": reason.value}
        return self.registry.get_sample_value("baton_router_refusals_total", labels) or 0.0

    @property
    def connections(self) -> float | None:
        return self.registry.get_sample_value("baton_router_http_connections")

    async def connect(
        self, address: str = "127.0.0.1"
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, local_addr=(address, 0))

    async def says(self, *parts: bytes, address: str = "127.0.0.1") -> bytes:
        """Send the parts, and return all that comes until the server closes."""
        reader, writer = await self.connect(address)
        for part in parts:
            writer.write(part)
            await writer.drain()
        reply = await asyncio.wait_for(reader.read(), DEADLINE_S)
        writer.close()
        return reply

    async def health(self) -> int:
        async with httpx.AsyncClient(timeout=DEADLINE_S) as client:
            reply = await client.get(f"http://127.0.0.1:{self.port}/health")
        return reply.status_code


@asynccontextmanager
async def serving(tls: ClientTls | None = None, **limits: Any) -> AsyncIterator[Server]:
    server = Server()
    metrics = ClientMetrics("router", server.registry)
    given = ClientLimits(**limits)
    guard = ClientGuard(given, metrics, given.connections, given.connections)
    http = HttpServer(server.app(), "127.0.0.1", 0, tls, guard)
    await http.start()
    server.port = http.port
    try:
        yield server
    finally:
        server.go_on.set()
        await http.stop(1.0)


def error_of(reply: bytes) -> dict[str, str]:
    """The error of a whole HTTP reply."""
    head, _, body = reply.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head, reply
    assert b"connection: close" in head, reply
    error: dict[str, str] = json.loads(body)["error"]
    return error


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not true():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("parts", [(b"GET /hea",), (GET[:-2],), (b"\r\n", b"\r\n")])
async def test_a_header_that_does_not_end_is_answered_with_408(parts: tuple[bytes, ...]) -> None:
    async with serving(header_s=SHORT_S) as server:
        reply = await server.says(*parts)
        assert reply.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
        assert error_of(reply)["code"] == "deadline_exceeded"
        assert server.refusals(Refusal.HEADER_TIME) == 1


async def test_a_connection_that_says_nothing_is_closed() -> None:
    async with serving(header_s=SHORT_S) as server:
        assert await server.says() == b""
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
            await asyncio.sleep(SHORT_S / 10)
        else:
            pytest.fail("the server waited for ever")
        writer.close()
        assert server.refusals(Refusal.HEADER_TIME) == 1


async def test_the_second_request_of_a_connection_has_its_own_deadline() -> None:
    async with serving(header_s=SHORT_S) as server:
        reply = await server.says(GET, GET[:9])
        assert reply.startswith(b"HTTP/1.1 200 OK\r\n") and b"HTTP/1.1 408 " in reply


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


async def test_what_is_no_http_is_answered_with_400() -> None:
    async with serving() as server:
        reply = await server.says(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        assert reply.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert error_of(reply)["code"] == "invalid_request"
        assert server.refusals(Refusal.MALFORMED) == 1


async def test_a_pipeline_is_bounded_and_its_first_answer_hears_of_the_end() -> None:
    async with serving() as server:
        first = b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n"
        _, writer = await server.connect()
        writer.write(first + GET * 100)
        await asyncio.wait_for(server.gone.wait(), DEADLINE_S)
        assert server.refusals(Refusal.PIPELINE) == 1
        writer.close()


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
        writer.transport.pause_reading()
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
        writer.transport.pause_reading()
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


async def test_a_new_connection_displaces_one_without_a_request() -> None:
    async with serving(connections=8) as server, AsyncExitStack() as open_:
        for _ in range(40):
            _, writer = await server.connect()
            open_.callback(hang_up, writer)
        assert await server.health() == 200
        assert server.refusals(Refusal.CONNECTIONS_OF_CLIENT) >= 30
        assert (server.connections or 0) <= 8


def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def busy(server: Server, address: str, count: int, open_: AsyncExitStack) -> None:
    """Open connections from an address of loopback that wait for an answer."""
    begun = server.waiting
    for _ in range(count):
        _, writer = await server.connect(address)
        open_.callback(hang_up, writer)
        writer.write(WAIT)
    await until(lambda: server.waiting == begun + count)


async def test_beyond_a_clients_limit_only_health_is_answered() -> None:
    async with serving(client_connections=3) as server, AsyncExitStack() as open_:
        await busy(server, "127.0.0.2", 3, open_)
        refused = await server.says(WAIT, address="127.0.0.2")
        assert refused.startswith(b"HTTP/1.1 429 ") and b"retry-after: 1\r\n" in refused
        assert "this address has 3 connections" in error_of(refused)["message"]
        reply = await server.says(GET, address="127.0.0.2")
        assert reply.startswith(b"HTTP/1.1 200 ") and b"connection: close" in reply
        assert await server.health() == 200
        assert server.refusals(Refusal.CONNECTIONS_OF_CLIENT) == 2


async def test_beyond_the_limit_of_all_only_health_is_answered() -> None:
    async with serving(connections=4) as server, AsyncExitStack() as open_:
        await busy(server, "127.0.0.2", 2, open_)
        await busy(server, "127.0.0.3", 2, open_)
        refused = await server.says(WAIT)
        assert refused.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1\r\n" in refused
        assert "the server has 4 connections" in error_of(refused)["message"]
        assert await server.health() == 200
        assert server.refusals(Refusal.CONNECTIONS) == 2


async def test_who_opens_many_connections_loses_theirs_first() -> None:
    async with serving(connections=9, client_connections=8) as server, AsyncExitStack() as open_:
        calm = [await server.connect("127.0.0.2") for _ in range(2)]
        for _ in range(40):
            _, writer = await server.connect("127.0.0.3")
            open_.callback(hang_up, writer)
        await until(lambda: server.refusals(Refusal.CONNECTIONS) >= 30)
        for reader, writer in calm:
            writer.write(GET)
            assert await asyncio.wait_for(reader.readuntil(b"ok"), DEADLINE_S)
            writer.transport.abort()


@pytest.fixture
def tls(tmp_path: Path) -> ClientTls:
    return ClientTls(TestAuthority.make().issue(tmp_path / "tls"))


async def test_a_handshake_that_does_not_end_is_cut_off(tls: ClientTls) -> None:
    async with serving(tls, header_s=SHORT_S) as server:
        assert await server.says() == b""
        await until(lambda: server.connections == 0)
        assert server.refusals(Refusal.HANDSHAKE) == 1


async def test_a_client_that_speaks_no_tls_is_cut_off(tls: ClientTls) -> None:
    async with serving(tls) as server:
        assert b"200" not in await server.says(GET)
        await until(lambda: server.connections == 0)
        assert server.refusals(Refusal.HANDSHAKE) == 1


async def test_handshakes_count_as_connections_and_give_way(tls: ClientTls) -> None:
    async with serving(tls, connections=8) as server, AsyncExitStack() as open_:
        for _ in range(40):
            _, writer = await server.connect()
            open_.callback(hang_up, writer)
        async with httpx.AsyncClient(verify=False, timeout=DEADLINE_S) as client:
            reply = await client.get(f"https://127.0.0.1:{server.port}/health")
        assert reply.status_code == 200
        assert server.refusals(Refusal.CONNECTIONS_OF_CLIENT) >= 30
        assert (server.connections or 0) <= 8


async def test_a_client_that_has_caught_up_is_not_cut_off() -> None:
    async with serving(write_s=SHORT_S, idle_s=DEADLINE_S) as server:
        reader, writer = await server.connect()
        size = 16 << 20  # more than both kernels' buffers, so that the server has to wait
        head = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size
        writer.write(head + bytes(size))
        reply = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), DEADLINE_S)
        assert reply.startswith(b"HTTP/1.1 200 ")
        await asyncio.wait_for(reader.readexactly(size), DEADLINE_S)
        await asyncio.sleep(3 * SHORT_S)
        writer.write(GET)
        assert await asyncio.wait_for(reader.readuntil(b"ok"), DEADLINE_S)
        assert server.refusals(Refusal.SLOW_READER) == 0
        writer.close()
