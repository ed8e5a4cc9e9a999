"""Serves GET /metrics on the worker's own asyncio loop, without another thread."""

import asyncio
import contextlib

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

REQUEST_S = 5.0
"""The time that a client may take to send its request, and again to read the answer."""


class MetricsServer:
    """A minimal HTTP/1.1 server for Prometheus and curl: one request a connection."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    async def start(self, host: str, port: int) -> int:
        """Start to listen and return the port. Raises OSError if it is taken."""
        self._server = await asyncio.start_server(self._answer, host, port)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        """Stop listening. Called only after `start`."""
        self._server.close()
        await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError, asyncio.IncompleteReadError,
                                 asyncio.LimitOverrunError):  # fmt: skip
            async with asyncio.timeout(REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._reply(head.split(b"\r\n", 1)[0]))
                await writer.drain()
        writer.close()

    def _reply(self, request_line: bytes) -> bytes:
        method, _, rest = request_line.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method != b"GET":
            return _response("405 Method Not Allowed", "text/plain", b"GET only\n")
        if path != b"/metrics":
            return _response("404 Not Found", "text/plain", b"the metrics are at /metrics\n")
        return _response("200 OK", CONTENT_TYPE_PLAIN_0_0_4, generate_latest(self._registry))


def _response(status: str, kind: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body
