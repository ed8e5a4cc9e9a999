"""The order of TLS handshakes in a burst, and beside clients that say nothing."""

import asyncio
import socket
import ssl
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Self, cast

import pytest
from api.attacked_http import CLOSING_GET, DEADLINE_S, serving
from https_certificates import TestAuthority
from kit.polling import until
from prometheus_client import CollectorRegistry

from baton.api.access.client_limits import ClientLimits
from baton.api.access.client_metrics import ClientMetrics
from baton.api.server.acceptor import Acceptor
from baton.api.server.connection_table import Connection, ConnectionTable
from baton.api.server.handshake_turns import HandshakeTurns
from baton.rpc.client_tls import ClientTls


class Begun:
    """Turns that have begun, each by a client whose name is the first letter of the turn's."""

    def __init__(self, at_once: int, turn_s: float = DEADLINE_S) -> None:
        self.names: list[str] = []
        self._turns = HandshakeTurns(at_once, turn_s)
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def ask(self, *names: str) -> None:
        for name in names:
            self._ends[name] = asyncio.Event()
            self._tasks[name] = asyncio.create_task(self._have(name))
        await settle()

    async def _have(self, name: str) -> None:
        async with self._turns.turn(name[0]):
            self.names.append(name)
            await self._ends[name].wait()

    async def end(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()
            await self._tasks[name]
        await settle()

    async def cancel(self, name: str) -> None:
        self._tasks[name].cancel()
        await asyncio.wait([self._tasks[name]])
        await settle()


async def settle() -> None:
    """Let all tasks of a test go as far as they can."""
    for _ in range(8):
        await asyncio.sleep(0)


async def test_clients_take_turns_and_each_ones_first_is_next() -> None:
    begun = Begun(at_once=2)
    await begun.ask("a1", "a2", "a3", "a4", "b1", "a5", "c1")
    assert begun.names == ["a1", "a2"]
    for ended, next_one in {"a2": "a3", "a1": "b1", "b1": "c1", "a3": "a4", "c1": "a5"}.items():
        await begun.end(ended)
        assert begun.names[-1] == next_one
    await begun.end("a4", "a5")
    await begun.ask("d1", "d2", "d3")
    assert begun.names[-2:] == ["d1", "d2"]
    await begun.end("d1", "d2", "d3")


async def test_who_leaves_the_queue_or_its_turn_lets_the_next_begin() -> None:
    begun = Begun(at_once=1)
    await begun.ask("a1", "a2", "a3")
    await begun.cancel("a2")
    await begun.cancel("a1")
    assert begun.names == ["a1", "a3"]
    await begun.end("a3")


async def test_one_that_is_cancelled_as_its_turn_begins_passes_it_on() -> None:
    begun = Begun(at_once=1)
    await begun.ask("a1", "a2", "a3")
    begun._ends["a1"].set()
    while not begun._tasks["a1"].done():
        await asyncio.sleep(0)
    begun._tasks["a2"].cancel()  # in the step in which its turn begins
    await settle()
    assert begun.names[-1] == "a3"
    await begun.end("a3")


async def test_a_turn_that_takes_long_holds_up_nobody() -> None:
    begun = Begun(at_once=1, turn_s=0.01)
    await begun.ask("a1", "b1", "b2")
    await until(lambda: begun.names == ["a1", "b1", "b2"])
    await begun.end("b2", "a1", "b1")


class Listening:
    """An acceptor of TLS connections, and the handshakes that it has under way."""

    def __init__(self, folder: Path, turns: HandshakeTurns) -> None:
        self.begun = self.over = self.most_under_way = 0
        metrics = ClientMetrics("router", CollectorRegistry())
        self.table = ConnectionTable(ClientLimits(), 4096, metrics)
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=512)
        tls = ClientTls(TestAuthority.make().issue(folder)).http_context()
        tls.sni_callback = self._begin
        self._acceptor = Acceptor(self._socket, self.table, self._serve, DEADLINE_S, tls, turns)

    def _begin(self, _tls: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        self.begun += 1
        self.most_under_way = max(self.most_under_way, self.begun - self.over)

    def _serve(self, place: Connection) -> asyncio.Protocol:
        return Greeting(self, place)

    async def __aenter__(self) -> Self:
        self._acceptor.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._acceptor.close()
        await self._acceptor.wait_closed()
        self._socket.close()

    def connect(self) -> socket.socket:
        """Return a connection on which nothing was said yet."""
        return socket.create_connection(self._socket.getsockname())

    async def greet(self) -> bytes:
        """Do a handshake, and return what is said to that client."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        host, port = self._socket.getsockname()
        async with asyncio.timeout(DEADLINE_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
            greeting = await reader.read()
        writer.close()
        return greeting


class Greeting(asyncio.Protocol):
    """A protocol that greets a client whose handshake is over, and leaves."""

    def __init__(self, listening: Listening, place: Connection) -> None:
        self._listening, self._place = listening, place

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        client = cast(asyncio.Transport, transport)  # uvloop's is none
        self._listening.over += 1
        client.write(b"hello")
        client.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._listening.table.closed(self._place)


async def test_some_handshakes_of_a_burst_are_under_way_at_once(tmp_path: Path) -> None:
    async with Listening(tmp_path, HandshakeTurns(at_once=4, turn_s=DEADLINE_S)) as listening:
        greetings = await asyncio.gather(*(listening.greet() for _ in range(60)))
        assert set(greetings) == {b"hello"} and listening.begun == 60
        assert listening.most_under_way <= 4


async def test_who_says_nothing_has_no_turn(tmp_path: Path) -> None:
    async with Listening(tmp_path, HandshakeTurns(at_once=1, turn_s=DEADLINE_S)) as listening:
        silent = [listening.connect() for _ in range(20)]
        await until(lambda: len(listening.table) == 20)
        assert await listening.greet() == b"hello"
        for client in silent:
            client.close()
        await until(lambda: len(listening.table) == 0)


def first_words() -> bytes:
    """Return what a TLS client says first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="x")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


async def test_who_stops_in_its_handshake_holds_up_nobody_for_long(tmp_path: Path) -> None:
    async with Listening(tmp_path, HandshakeTurns(at_once=1, turn_s=0.01)) as listening:
        silent = [listening.connect() for _ in range(20)]
        for client in silent:
            client.sendall(first_words())
        await until(lambda: listening.begun == 20)
        assert await listening.greet() == b"hello"
        for client in silent:
            client.close()
        await until(lambda: len(listening.table) == 0)


async def received(
    client: ssl.SSLObject, incoming: ssl.MemoryBIO, reader: asyncio.StreamReader
) -> bytes:
    """Return all that a TLS client receives until the end."""
    found = b""
    while True:
        with suppress(ssl.SSLWantReadError):
            try:
                while part := client.read(1 << 16):
                    found += part
            except ssl.SSLEOFError:
                pass
            return found
        if part := await asyncio.wait_for(reader.read(1 << 16), DEADLINE_S):
            incoming.write(part)
        else:
            incoming.write_eof()


async def test_the_time_for_a_header_begins_with_the_end_of_the_handshake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are bounded by as much: after a long handshake, none would be left for the header."""
    now = 0.0
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr("baton.api.server.http_protocol.time", clock)
    tls = ClientTls(TestAuthority.make().issue(tmp_path))
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing)
    async with serving(tls, header_s=10.0) as server:
        reader, writer = await server.connect()
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
                incoming.write(await asyncio.wait_for(reader.read(1 << 16), DEADLINE_S))
        now = 9.9
        writer.write(outgoing.read())
        await until(lambda: all(each.served_by for each in server.table._open))
        now = 10.1
        server.table.check()
        client.write(CLOSING_GET)
        writer.write(outgoing.read())
        assert (await received(client, incoming, reader)).startswith(b"HTTP/1.1 200 ")
        writer.close()
