"""Attacks by many HTTP connections or requests: what gives way, what is refused, who notices."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
from api.attacked_http import DEADLINE_S, GET, SHORT_S, WAIT, Server, error_of, serving
from https_certificates import TestAuthority
from kit.polling import until

from baton.api.access.client_limits import Refusal
from baton.api.server import connection_table
from baton.rpc.client_tls import ClientTls


async def test_a_new_connection_displaces_one_without_a_request() -> None:
    async with serving(connections=8) as server, AsyncExitStack() as open_:
        for _ in range(40):
            _, writer = await server.connect()
            open_.callback(hang_up, writer)
        assert await server.health() == 200
        assert server.refusals(Refusal.CONNECTIONS_OF_CLIENT) >= 30
        await until(lambda: (server.connections or 0) <= 8)


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
        reasons = (Refusal.CONNECTIONS, Refusal.CONNECTIONS_OF_CLIENT)
        await until(lambda: sum(map(server.refusals, reasons)) >= 30)
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


async def test_handshakes_count_as_connections_and_give_way(
    tls: ClientTls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_table, "OPENING_S", 0.3)
    async with serving(tls, connections=8, header_s=3.0) as server, AsyncExitStack() as open_:
        for _ in range(40):
            _, writer = await server.connect()
            open_.callback(hang_up, writer)
        async with httpx.AsyncClient(verify=False, timeout=DEADLINE_S) as client:
            reply = await client.get(f"https://127.0.0.1:{server.port}/health")
        assert reply.status_code == 200
        assert server.refusals(Refusal.CONNECTIONS_OF_CLIENT) >= 30
        await until(lambda: (server.connections or 0) <= 8)


async def test_beyond_the_limit_of_answers_only_health_is_answered() -> None:
    async with serving(http_streams=2) as server, AsyncExitStack() as open_:
        await busy(server, "127.0.0.2", 2, open_)
        assert server.streams == 2
        refused = await server.says(WAIT[:-2] + b"Connection: close\r\n\r\n")
        assert refused.startswith(b"HTTP/1.1 429 ") and b"retry-after: 1\r\n" in refused
        assert "2 requests are being answered" in error_of(refused)["message"]
        messages = b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nX-Request-Id: mine\r\n"
        refused = await server.says(messages + b"Connection: close\r\n\r\n")
        assert b"x-request-id: mine\r\n" in refused, "as on every other reply"
        assert refused.count(b'"type":"error"') == 1, "in the form of Anthropic's API"
        assert await server.health() == 200
        assert server.refusals(Refusal.STREAMS) == 2
        server.go_on.set()
        await until(lambda: server.streams == 0)
        reply = await server.says(WAIT[:-2] + b"Connection: close\r\n\r\n")
        assert reply.startswith(b"HTTP/1.1 200 ")


async def test_an_answer_whose_client_has_left_counts_no_more() -> None:
    async with serving(http_streams=1) as server:
        _, writer = await server.connect()
        writer.write(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: server.streams == 1)
        writer.transport.abort()
        await until(lambda: server.streams == 0)


@pytest.mark.parametrize(
    ("proxies", "seen"),
    [("", "127.0.0.1 http"), ("127.0.0.0/8", "10.0.0.9 https"), ("10.0.0.0/8", "127.0.0.1 http")],
)
async def test_a_client_names_its_address_only_through_a_proxy_that_is_trusted(
    proxies: str, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")  # what uvicorn would read
    async with serving(forwarded_allow_ips=proxies) as server:
        reply = await server.says(
            b"GET /who HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            b"X-Forwarded-For: 10.0.0.9\r\nX-Forwarded-Proto: https\r\n\r\n"
        )
    assert reply.endswith(seen.encode())
