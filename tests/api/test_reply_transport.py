"""The writes of one reply: its header goes with what follows at once, and never waits for it."""

import asyncio
from typing import cast

import pytest

from baton.api.server.reply_transport import ReplyTransport


class Writes:
    """A transport that remembers what was written, and whether it was closed."""

    def __init__(self) -> None:
        self.found: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.found.append(data)

    def close(self) -> None:
        self.found.append(b"closed")

    def is_closing(self) -> bool:
        return b"closed" in self.found


@pytest.fixture
def writes() -> Writes:
    return Writes()


@pytest.fixture
def reply(writes: Writes) -> ReplyTransport:
    return ReplyTransport(cast(asyncio.Transport, writes), writes.close)


async def test_a_header_and_its_body_are_one_write(writes: Writes, reply: ReplyTransport) -> None:
    reply.write(b"header ")
    reply.write(b"body")
    reply.write(b"more")
    await asyncio.sleep(0)
    assert writes.found == [b"header body", b"more"]


async def test_a_header_without_a_body_is_written_in_the_same_turn(
    writes: Writes, reply: ReplyTransport
) -> None:
    reply.write(b"HTTP/1.1 100 Continue")
    await asyncio.sleep(0)
    assert writes.found == [b"HTTP/1.1 100 Continue"]
    reply.write(b"header")
    reply.write(b"")
    assert writes.found[1:] == [b"header", b""]


async def test_a_header_is_written_before_the_connection_closes(
    writes: Writes, reply: ReplyTransport
) -> None:
    reply.write(b"header")
    reply.close()
    await asyncio.sleep(0)
    assert writes.found == [b"header", b"closed"]
