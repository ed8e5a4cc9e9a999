"""Replies that are complete before their request is: whoever is still sending reads them."""

import asyncio
import socket
import ssl
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from api.attacked_http import DEADLINE_S, SHORT_S, WAIT, error_of, serving
from https_certificates import TestAuthority
from kit.polling import until

from baton.api.access.client_limits import Refusal
from baton.api.server.lingering_http import MAX_UNREAD
from baton.rpc.client_tls import ClientTls

BODY = bytes(8 * MAX_UNREAD)
"""More than all buffers on its way hold."""


def head(path: str, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", *headers]
    return "".join(f"{line}\r\n" for line in [*lines, ""]).encode()


LARGE = f"Content-Length: {len(BODY)}"


def send_on(port: int, start: bytes, rest: bytes, tls: ssl.SSLContext | None = None) -> bytes:
    """Send the start of a request, the rest of it when the reply has come, and return that."""
    client = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
    if tls is not None:
        client = tls.wrap_socket(client)
    with client:
        client.sendall(start)
        reply = client.recv(1)
        client.sendall(rest)  # fails where the connection was closed
        while part := client.recv(65536):
            reply += part
    return reply


@pytest.mark.parametrize(
    "closing",
    [
        head("/refuse", LARGE, "Connection: close"),
        head("/refuse", LARGE).replace(b"HTTP/1.1", b"HTTP/1.0"),
    ],
    ids=["close", "HTTP/1.0"],
)
async def test_who_is_still_sending_a_body_reads_its_refusal(closing: bytes) -> None:
    async with serving() as server:
        reply = await asyncio.to_thread(send_on, server.port, closing, BODY)
        assert reply.startswith(b"HTTP/1.1 401 ") and reply.endswith(b"no")
        await until(lambda: server.connections == 0)


async def test_who_is_still_sending_chunks_reads_its_refusal() -> None:
    start = head("/refuse", "Transfer-Encoding: chunked", "Connection: close")
    chunk = b"%x\r\n%b\r\n" % (len(BODY), BODY)
    async with serving() as server:
        reply = await asyncio.to_thread(send_on, server.port, start, chunk + b"0\r\n\r\n")
        assert reply.startswith(b"HTTP/1.1 401 ")
        await until(lambda: server.connections == 0)


async def test_over_tls_too(tmp_path: Path) -> None:
    tls = ClientTls(TestAuthority.make().issue(tmp_path / "tls"))
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    start = head("/refuse", LARGE, "Connection: close")
    async with serving(tls) as server:
        reply = await asyncio.to_thread(send_on, server.port, start, BODY, context)
        assert reply.startswith(b"HTTP/1.1 401 ") and reply.endswith(b"no")


async def test_who_is_still_sending_beyond_a_limit_reads_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However busy the machine is, the client does not give way while it sends."""
    monkeypatch.setattr("baton.api.server.connection_table.GRACE_S", DEADLINE_S)
    async with serving(client_connections=1) as server, AsyncExitStack() as open_:
        _, writer = await server.connect()
        open_.callback(writer.transport.abort)
        writer.write(WAIT)
        await until(lambda: server.waiting == 1)
        reply = await asyncio.to_thread(send_on, server.port, head("/echo", LARGE), BODY)
        assert reply.startswith(b"HTTP/1.1 429 ")
        assert "connections with requests" in error_of(reply)["message"]


async def test_nothing_is_read_behind_the_last_request() -> None:
    async with serving() as server, AsyncExitStack() as open_:
        reader, writer = await server.connect()
        open_.callback(writer.transport.abort)
        writer.write(head("/refuse", "Content-Length: 5", "Connection: close"))
        async with asyncio.timeout(DEADLINE_S):
            assert (await reader.read()).startswith(b"HTTP/1.1 401 ")
        writer.write(b"hello" + head("/echo", "Content-Length: 0"))
        await until(lambda: server.connections == 0)
        assert server.echoing == 0


async def test_a_body_that_does_not_end_does_not_keep_the_connection() -> None:
    start = head("/refuse", LARGE, "Connection: close")
    async with serving(body_s=SHORT_S) as server, AsyncExitStack() as open_:
        reader, writer = await server.connect()
        open_.callback(writer.transport.abort)
        writer.write(start)
        async with asyncio.timeout(DEADLINE_S):
            assert (await reader.read()).startswith(b"HTTP/1.1 401 ")  # its end came at once
        await until(lambda: server.connections == 0)
        assert server.refusals(Refusal.BODY_TIME) == 1


async def test_a_body_that_is_malformed_ends_the_connection() -> None:
    start = head("/refuse", "Transfer-Encoding: chunked", "Connection: close")
    async with serving() as server, AsyncExitStack() as open_:
        reader, writer = await server.connect()
        open_.callback(writer.transport.abort)
        writer.write(start)
        async with asyncio.timeout(DEADLINE_S):
            assert (await reader.read()).startswith(b"HTTP/1.1 401 ")
        writer.write(b"no size\r\n")
        await until(lambda: server.connections == 0)
        assert server.refusals(Refusal.BODY_TIME) == 0
