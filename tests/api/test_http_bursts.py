"""Bursts of connections beyond the limits: each gets its answer or its refusal, and none hangs."""

import asyncio
import gc
import os
import socket
import ssl
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
from api.attacked_http import CLOSING_GET, DEADLINE_S, WAIT, Server, error_of, serving
from https_certificates import TestAuthority
from kit.polling import until
from prometheus_client import CollectorRegistry

from baton.api.access.client_limits import ClientLimits, Refusal
from baton.api.access.client_metrics import ClientMetrics
from baton.api.server.acceptor import A_TURN, Acceptor
from baton.api.server.connection_table import (
    GRACE_S,
    LINGERING,
    OPENING_S,
    SHED,
    Connection,
    ConnectionTable,
)
from baton.api.server.lingering_http import MAX_UNREAD
from baton.rpc.client_tls import ClientTls


def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def ask(server: Server, tls: ssl.SSLContext | None) -> bytes:
    """Return the status of the reply to one request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=tls)
    try:
        writer.write(CLOSING_GET)
        async with asyncio.timeout(DEADLINE_S):
            reply = await reader.read()
        return reply[9:12] or b"none"
    finally:
        writer.close()


async def burst(server: Server, count: int, tls: ssl.SSLContext | None = None) -> Counter[bytes]:
    """Return how many of `count` simultaneous clients got which status."""
    return Counter(await asyncio.gather(*(ask(server, tls) for _ in range(count))))


async def test_each_of_a_burst_gets_an_answer_or_its_refusal() -> None:
    async with serving(client_connections=8) as server:
        assert await ask(server, None) == b"200"  # uvloop opens a file of its own
        before = descriptors()
        for _ in range(3):
            found = await burst(server, 150)
            assert found.total() == 150 and set(found) <= {b"200", b"429"}, found
            assert found[b"200"] >= 8
        await until(lambda: descriptors() <= before)


async def test_each_of_a_burst_is_answered_beside_busy_ones() -> None:
    async with serving(client_connections=8) as server, AsyncExitStack() as open_:
        for _ in range(8):
            _, writer = await server.connect()
            open_.callback(hang_up, writer)
            writer.write(WAIT)
        await until(lambda: server.waiting == 8)
        assert await burst(server, 120) == {b"429": 120}
        assert server.waiting == 8 and server.streams == 8


@pytest.fixture
def tls(tmp_path: Path) -> ClientTls:
    return ClientTls(TestAuthority.make().issue(tmp_path / "tls"))


async def test_each_of_a_burst_is_answered_over_tls(tls: ClientTls) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    async with serving(tls, client_connections=4) as server:
        found = await burst(server, 60, context)
        assert found.total() == 60 and set(found) <= {b"200", b"429"}, found


def open_tls(port: int, tls: ssl.SSLContext) -> ssl.SSLSocket:
    return tls.wrap_socket(socket.create_connection(("127.0.0.1", port), DEADLINE_S))


async def test_silent_connections_over_tls_keep_no_descriptors_when_they_give_way(
    tls: ClientTls,
) -> None:
    """TLS by itself waits for half a minute until a client agrees to an end."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    async with serving(tls, client_connections=4) as server:
        assert await ask(server, context) == b"200"  # uvloop opens a file of its own
        before = descriptors()
        clients: list[ssl.SSLSocket] = []
        try:
            async with asyncio.timeout(DEADLINE_S):
                while server.refusals(Refusal.CONNECTIONS_OF_CLIENT) < 4 * LINGERING:
                    clients.append(await asyncio.to_thread(open_tls, server.port, context))
                    uncounted = descriptors() - before - len(clients) - (server.connections or 0)
                    assert uncounted <= LINGERING + A_TURN
        finally:
            for client in clients:
                client.close()


async def test_a_silent_connection_is_told_that_it_gives_way() -> None:
    async with serving(client_connections=2) as server, AsyncExitStack() as open_:
        silent = [await server.connect() for _ in range(2)]
        for _, writer in silent:
            open_.callback(hang_up, writer)
        await until(lambda: server.connections == 2)
        told = asyncio.create_task(silent[0][0].read())
        async with asyncio.timeout(DEADLINE_S):
            while not told.done():
                assert await server.health() == 200
        reply = await told
        assert reply.startswith(b"HTTP/1.1 429 ")
        assert "had no request" in error_of(reply)["message"]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, clients may read their refusal."""
    monkeypatch.setattr("baton.api.server.lingering_http.LINGER_S", DEADLINE_S)


def send_late(client: socket.socket) -> bytes:
    """Send a request in two parts on a connection that has had its refusal, and return that."""
    client.settimeout(DEADLINE_S)
    assert client.recv(1, socket.MSG_PEEK)
    client.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n")
    client.sendall(b"hello")  # fails where the first part met a closed socket
    with client, client.makefile("rb") as replies:
        return replies.read()


@pytest.mark.usefixtures("patient")
async def test_a_request_that_comes_too_late_is_told_why() -> None:
    async with serving(client_connections=1) as server:
        assert await ask(server, None) == b"200"  # uvloop opens a file of its own
        before = descriptors()
        silent = socket.create_connection(("127.0.0.1", server.port))
        await until(lambda: server.connections == 1)
        late = asyncio.create_task(asyncio.to_thread(send_late, silent))
        async with asyncio.timeout(DEADLINE_S):
            while not late.done():
                assert await server.health() == 200
        reply = await late
        assert reply.startswith(b"HTTP/1.1 429 ") and reply.count(b"HTTP/1.1") == 1
        await until(lambda: descriptors() <= before)


@pytest.mark.usefixtures("patient")
async def test_who_goes_on_sending_after_a_refusal_reads_it_but_sends_no_end() -> None:
    async with serving() as server:
        client = socket.create_connection(("127.0.0.1", server.port))
        client.sendall(b"this is no HTTP request\r\n\r\n")
        reply = await asyncio.to_thread(send_late, client)
        assert reply.startswith(b"HTTP/1.1 400 ") and reply.count(b"HTTP/1.1") == 1
        _, writer = await server.connect()
        writer.write(b"this is no HTTP request\r\n\r\n")
        with pytest.raises(ConnectionError):
            async with asyncio.timeout(DEADLINE_S):
                while True:
                    writer.write(bytes(MAX_UNREAD))
                    await writer.drain()
        await until(lambda: server.connections == 0)


def test_of_too_many_that_gave_way_the_one_that_waited_longest_is_hung_up() -> None:
    metrics = ClientMetrics("router", CollectorRegistry())
    table = ConnectionTable(ClientLimits(), 64, metrics)
    places = [table.opened("10.0.0.1") for _ in range(LINGERING + 2)]
    protocols = [Silent() for _ in places]
    for place, protocol in zip(places, protocols, strict=True):
        if place is places[-1]:
            table.closed(places[1])  # its client has read why
        table.lingers(place, protocol)
    assert [at for at, protocol in enumerate(protocols) if protocol.hung_up] == [0]


def send_and_read(client: socket.socket, sent: threading.Event) -> bytes:
    """Send a request, and return all that comes until the end."""
    client.settimeout(DEADLINE_S)
    client.sendall(CLOSING_GET)
    sent.set()
    with client, client.makefile("rb") as replies:
        return replies.read()


@pytest.mark.parametrize("over_tls", [False, True])
async def test_each_of_many_that_give_way_at_once_reads_why_though_it_has_sent(
    over_tls: bool, tls: ClientTls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their requests come after the look whether they have. A socket that is closed with unread
    bytes, and has not said the end, resets its connection."""
    monkeypatch.setattr("baton.api.server.acceptor._has_unread", lambda accepted: False)
    monkeypatch.setattr("baton.api.server.connection_table.GRACE_S", 0.0)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    count = 3 * LINGERING
    async with serving(tls if over_tls else None, client_connections=count) as server:
        clients: list[socket.socket] = []
        for _ in range(count):
            open_ = partial(open_tls, server.port, context) if over_tls else server.open
            clients.append(await asyncio.to_thread(open_))
        await until(lambda: [bool(each.served_by) for each in server.table._open] == [True] * count)
        sent = [threading.Event() for _ in clients]
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(count) as threads:
            replies = [
                loop.run_in_executor(threads, send_and_read, client, each)
                for client, each in zip(clients, sent, strict=True)
            ]
            assert all(each.wait(DEADLINE_S) for each in sent)  # the loop reads nothing meanwhile
            while server.table.make_room():
                pass
            found = Counter(reply[:12] for reply in await asyncio.gather(*replies))
        assert found == {b"HTTP/1.1 429": count}, found
        await until(lambda: server.connections == 0)


async def test_silent_connections_beyond_the_limit_do_not_keep_others_out() -> None:
    async with serving(client_connections=2) as server, AsyncExitStack() as open_:
        for _ in range(2):
            _, writer = await server.connect("127.0.0.2")
            open_.callback(hang_up, writer)
            writer.write(WAIT)
        await until(lambda: server.waiting == 2)
        for _ in range(3 * SHED):
            _, writer = await server.connect("127.0.0.2")
            open_.callback(hang_up, writer)
        assert await server.health() == 200
        await until(lambda: (server.connections or 0) <= 2)


async def test_a_request_waits_for_silent_connections_that_had_no_time() -> None:
    async with serving(client_connections=4) as server, AsyncExitStack() as open_:
        for _ in range(5):
            for _ in range(4):
                _, writer = await server.connect()
                open_.callback(hang_up, writer)
            assert await ask(server, None) == b"200"


async def test_a_task_that_is_cancelled_before_its_first_step_closes_its_socket() -> None:
    limits = ClientLimits(client_connections=4)
    table = ConnectionTable(limits, 64, ClientMetrics("router", CollectorRegistry()))
    listener = socket.create_server(("127.0.0.1", 0))
    acceptor = Acceptor(listener, table, lambda place: asyncio.Protocol(), 1.0)
    gc.disable()
    try:
        clients = [socket.create_connection(listener.getsockname()) for _ in range(4)]
        listener.setblocking(False)
        for _ in clients:
            accepted, address = listener.accept()
            acceptor._admit(accepted, address[0])
        acceptor.close()  # cancels all that no step of the loop has begun
        await acceptor.wait_closed()
        for client in clients:
            client.settimeout(DEADLINE_S)
            assert await asyncio.to_thread(client.recv, 1) == b""
            client.close()
        assert len(table) == 0
    finally:
        gc.enable()
        listener.close()


class Silent:
    """A protocol whose deadlines never pass."""

    def __init__(self) -> None:
        self.writing = self.hung_up = False

    def check(self) -> None:
        pass

    def is_writing(self) -> bool:
        return self.writing

    def hang_up(self) -> None:
        self.hung_up = True


def test_a_handshake_gives_way_later_and_its_end_gives_the_time_for_a_request() -> None:
    now = 0.0
    metrics = ClientMetrics("router", CollectorRegistry())
    table = ConnectionTable(ClientLimits(client_connections=2), 64, metrics, lambda: now)
    dropped: list[int] = []
    places = [table.opened("10.0.0.1") for _ in range(2)]
    for at, place in enumerate(places):
        place.drop = partial(dropped.append, at)
    now = OPENING_S - 0.01
    over = table.opened("10.0.0.1")
    assert over.shed is not None and not table.admit(over)
    table.served(places[0], Silent(), places[0].drop)
    now = OPENING_S
    assert not dropped and table.admit(over) and dropped == [1]


def test_a_handshake_gives_way_to_a_request_alone() -> None:
    now = 0.0
    metrics = ClientMetrics("router", CollectorRegistry())
    table = ConnectionTable(ClientLimits(client_connections=1), 64, metrics, lambda: now)
    dropped: list[str] = []
    first = table.opened("10.0.0.1")
    first.drop = partial(dropped.append, "first")
    second = table.opened("10.0.0.1")
    second.drop = partial(dropped.append, "second")
    now = OPENING_S
    table.check()
    assert table.opened("10.0.0.1").shed is not None and not dropped
    table.served(second, Silent(), second.drop)
    table.busy(second)
    assert table.admit(second) and dropped == ["first"]


def test_the_time_of_a_handshake_begins_with_it() -> None:
    now = 0.0
    metrics = ClientMetrics("router", CollectorRegistry())
    table = ConnectionTable(ClientLimits(client_connections=2), 64, metrics, lambda: now)
    dropped: list[int] = []
    places = [table.opened("10.0.0.1") for _ in range(2)]
    for at, place in enumerate(places):
        place.drop = partial(dropped.append, at)
    over = [table.opened("10.0.0.1") for _ in range(2)]
    now = OPENING_S
    table.opening(places[0])  # its turn has come
    assert [table.admit(each) for each in over] == [True, False] and dropped == [1]
    now = 2 * OPENING_S
    assert table.admit(over[1]) and dropped == [1, 0]


def test_who_has_sent_something_or_has_just_come_does_not_give_way() -> None:
    now = 0.0
    limits = ClientLimits(client_connections=2)
    metrics = ClientMetrics("router", CollectorRegistry())
    table = ConnectionTable(limits, 64, metrics, lambda: now)
    dropped: list[int] = []
    places = [table.opened("10.0.0.1") for _ in range(2)]
    for at, place in enumerate(places):
        table.served(place, Silent(), partial(dropped.append, at))
    over = table.opened("10.0.0.1")
    assert over.shed is not None and not dropped
    table.served(over, Silent(), lambda: None)
    now = GRACE_S
    places[0].has_sent = lambda: True
    table.closed(table.opened("10.0.0.1"))
    assert dropped == [1]
    places[0].has_sent = lambda: False
    table.busy(places[0])
    table.idle(places[0])
    table.check()
    assert dropped == [1]
    assert table.opened("10.0.0.1").shed is None


def test_places_that_are_given_up_are_as_many_as_those_that_are_given() -> None:
    """Otherwise silent connections beyond the limit make room for requests beyond it."""
    now = 0.0
    metrics = ClientMetrics("router", CollectorRegistry())
    table = ConnectionTable(ClientLimits(client_connections=2), 64, metrics, lambda: now)
    dropped: list[Connection] = []

    def opened() -> Connection:
        place = table.opened("10.0.0.1")
        table.served(place, Silent(), lambda: dropped.append(place))
        return place

    placed, surplus = [opened() for _ in range(2)], [opened() for _ in range(4)]
    assert [each.shed is None for each in placed + surplus] == [True] * 2 + [False] * 4
    now = GRACE_S
    newer = [opened() for _ in range(3)]
    assert dropped == placed and [each.shed is None for each in newer] == [True, True, False]
    for each in newer[:2]:
        table.busy(each)
    for each in surplus:
        table.busy(each)
        assert not table.admit(each) and not table.may_admit(each)
    table.idle(newer[0])
    now = 2 * GRACE_S
    assert [table.admit(each) for each in surplus] == [True, False, False, False]
    assert dropped == [*placed, newer[0]]


def test_who_has_not_read_its_answer_does_not_give_way() -> None:
    now = 0.0
    metrics = ClientMetrics("router", CollectorRegistry())
    table = ConnectionTable(ClientLimits(client_connections=1), 64, metrics, lambda: now)
    client, dropped = Silent(), list[None]()
    table.served(table.opened("10.0.0.1"), client, lambda: dropped.append(None))
    now = GRACE_S
    client.writing = True
    assert table.opened("10.0.0.1").shed is not None and not dropped
    client.writing = False
    assert table.opened("10.0.0.1").shed is None and dropped
