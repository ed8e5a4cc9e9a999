"""Streams of events over real sockets: their coding, slow readers, and clients that leave."""

import asyncio
import json

import httpx
from api.attacked_http import DEADLINE_S, GET, LINE, SHORT_S, reading_of, serving

from baton.api.access.client_limits import Refusal


def asked(count: float) -> bytes:
    return b"GET /events?count=%g HTTP/1.1\r\nHost: x\r\n\r\n" % count


async def test_every_event_comes_once_and_the_connection_serves_the_next_request() -> None:
    async with (
        serving() as server,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=DEADLINE_S) as client,
    ):
        for _ in range(2):
            server.events = 0
            reply = await client.get("/events", params={"count": 40})
            *events, done, end = reply.text.split("\n\n")
            assert (done, end) == ("data: [DONE]", "")
            assert [json.loads(e.removeprefix("data: ")) for e in events] == [
                {"line": LINE.decode()}
            ] * 40
        assert server.connections == 1


async def test_events_wait_for_a_slow_reader_who_is_cut_off_at_last() -> None:
    async with serving(write_s=SHORT_S) as server:
        reader, writer = await server.connect()
        reading_of(writer).pause_reading()
        writer.write(asked(float("inf")))
        await asyncio.wait_for(server.gone.wait(), DEADLINE_S)
        assert server.refusals(Refusal.SLOW_READER) == 1
        # What both kernels buffer, and not what a fast server makes in the meantime.
        assert server.events * len(LINE) < 64 << 20
        assert await server.health() == 200
        writer.transport.abort()
        assert reader is not None


async def test_a_reader_who_pauses_gets_every_event() -> None:
    async with serving(write_s=DEADLINE_S) as server:
        reader, writer = await server.connect()
        reading_of(writer).pause_reading()
        writer.write(asked(400))
        await asyncio.sleep(SHORT_S)  # a reader who pauses
        made = server.events
        assert made < 400, "the server should have paused"
        reading_of(writer).resume_reading()
        got = b""
        async with asyncio.timeout(DEADLINE_S):
            while not got.endswith(b"[DONE]\n\n\r\n0\r\n\r\n"):
                got += await reader.read(1 << 20)
        assert got.count(b"data: {") == 400
        writer.transport.abort()


async def test_a_client_that_leaves_ends_its_events() -> None:
    async with serving() as server:
        reader, writer = await server.connect()
        writer.write(asked(float("inf")) + GET)
        await asyncio.wait_for(reader.readexactly(1000), DEADLINE_S)
        writer.transport.abort()
        await asyncio.wait_for(server.gone.wait(), DEADLINE_S)
