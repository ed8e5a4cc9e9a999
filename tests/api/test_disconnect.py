"""Work goes on only while somebody waits for it."""

import asyncio
from typing import Any

import pytest
from fake_backend import FakeBackend
from kit.polling import until

from baton.api.disconnect import ClientGone, unless_disconnected
from baton.api.http import make_app
from baton.api.server.http_protocol import GuardedHttp
from baton.api.server.http_server import HttpServer
from baton.api.text_service import TextService
from baton.core.supervised import ProcessSupervisor

DEADLINE_S = 60.0
BODY = b'{"prompt": "x"}'
POST = (
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
)


class Client:
    """Sends nothing until it leaves."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await asyncio.wait_for(self.left.wait(), 60)
        return {"type": "http.disconnect"}


async def test_the_work_is_cancelled_and_cleaned_up_before_the_client_is_reported_gone() -> None:
    client = Client()
    cleaned = False

    async def work() -> None:
        nonlocal cleaned
        try:
            client.left.set()
            await asyncio.wait_for(asyncio.Event().wait(), 60)
        finally:
            await asyncio.sleep(0)
            cleaned = True

    with pytest.raises(ClientGone):
        await unless_disconnected({}, client.receive, work())
    assert cleaned


async def test_a_client_that_stays_gets_the_result_or_the_error() -> None:
    async def answer() -> int:
        return 5

    async def fail() -> int:
        raise ValueError("no")

    assert await unless_disconnected({}, Client().receive, answer()) == 5
    with pytest.raises(ValueError, match="no"):
        await unless_disconnected({}, Client().receive, fail())
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.parametrize("hold_after", [0, 1])
async def test_the_server_says_that_a_client_has_left(
    backend: FakeBackend, text: TextService, hold_after: int
) -> None:
    backend.hold_after = hold_after
    server = HttpServer(make_app(backend, text), "127.0.0.1", 0, ProcessSupervisor())
    await server.start()
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(POST)
        await asyncio.wait_for(backend.holding.wait(), DEADLINE_S)
        writer.transport.abort()
        await asyncio.wait_for(backend.was_cancelled.wait(), DEADLINE_S)
        assert backend.cancelled == [backend.seen[0].request_id]
    finally:
        await server.stop(0.0)


async def test_one_who_waits_for_two_answers_is_heard_too(
    backend: FakeBackend, text: TextService
) -> None:
    backend.hold_after = 0
    server = HttpServer(make_app(backend, text), "127.0.0.1", 0, ProcessSupervisor())
    await server.start()
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(POST)
        await asyncio.wait_for(backend.holding.wait(), DEADLINE_S)
        writer.write(POST)
        (protocol,) = server._server.server_state.connections
        assert isinstance(protocol, GuardedHttp)
        await until(lambda: bool(protocol.pipeline))
        writer.transport.abort()
        await asyncio.wait_for(backend.was_cancelled.wait(), DEADLINE_S)
        assert backend.cancelled == [backend.seen[0].request_id]
    finally:
        await server.stop(0.0)
