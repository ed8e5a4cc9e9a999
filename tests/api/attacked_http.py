"""An HTTP server under attack, over real sockets, and what it counts."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import httpx
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from baton.api.access.client_limits import ClientLimits, Refusal
from baton.api.access.client_metrics import ClientMetrics
from baton.api.call_log import CallLog
from baton.api.request_ids import RequestIds
from baton.api.server.client_guard import ClientGuard
from baton.api.server.connection_table import ConnectionTable
from baton.api.server.http_server import HttpServer
from baton.api.sse import EventStream
from baton.core.supervised import ProcessSupervisor
from baton.rpc.client_tls import ClientTls

DEADLINE_S = 60.0
"""The deadline of every wait; only a broken server reaches it."""
SHORT_S = 0.2
GET = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"
CLOSING_GET = b"GET /who HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
WAIT = b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n"
LINE = b"x" * 65536


@dataclass
class Server:
    """A server under attack, and what its application saw."""

    port: int = 0
    table: ConnectionTable = field(init=False)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # a request lost its client
    go_on: asyncio.Event = field(default_factory=asyncio.Event)  # `/wait` answers
    echoing: int = 0  # requests that `/echo` has begun
    waiting: int = 0  # requests that `/wait` has begun
    events: int = 0  # that `/events` has made

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

        async def events(count: float) -> AsyncGenerator[dict[str, str], None]:
            try:
                while self.events < count:
                    self.events += 1
                    yield {"line": LINE.decode()}
                    await asyncio.sleep(0)
            finally:
                self.gone.set()

        async def event_stream(request: Request) -> Response:
            return EventStream(events(float(request.query_params["count"])), ping_s=0)

        async def refuse(_: Request) -> Response:
            return PlainTextResponse("no", 401)

        async def health(_: Request) -> Response:
            return PlainTextResponse("ok")

        async def who(request: Request) -> Response:
            assert request.client is not None
            return PlainTextResponse(f"{request.client.host} {request.url.scheme}")

        routes = [
            ("/echo", echo), ("/wait", wait), ("/stream", stream), ("/refuse", refuse),
            ("/who", who), ("/events", event_stream),
        ]  # fmt: skip
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

    @property
    def streams(self) -> float | None:
        return self.registry.get_sample_value("baton_router_http_streams")

    def open(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), DEADLINE_S)

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


def reading_of(writer: asyncio.StreamWriter) -> asyncio.ReadTransport:
    """Return the connection as what pauses its reading, on uvloop too."""
    return cast(asyncio.ReadTransport, writer.transport)


@asynccontextmanager
async def serving(tls: ClientTls | None = None, **limits: Any) -> AsyncIterator[Server]:
    server = Server()
    metrics = ClientMetrics("router", server.registry)
    given = ClientLimits(**limits)
    calls = CallLog("toy")
    guard = ClientGuard(given, metrics, given.connections, given.connections, calls)
    app = cast(Starlette, RequestIds(server.app(), calls))
    http = HttpServer(app, "127.0.0.1", 0, ProcessSupervisor(), tls, guard)
    await http.start()
    server.port, server.table = http.port, http._table
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
