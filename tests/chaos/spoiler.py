"""A fixture that holds up or spoils what a decode rank receives, whichever channel carries it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from baton.core.state_ref import StateRef
from baton.transfer.channels.grpc.receiver import StateChannelServicer
from baton.transfer.channels.nixl.agent import NixlAgent
from baton.transfer.memory.regions import EngineMemory
from baton.transfer.memory.segments import Segment

SMALL_BYTES = 64
"""No payload is in a message of this size: it opens a ticket."""


class Spoiler:
    """A fault in what a decode rank receives. For gRPC, messages are held up before the servicer
    reads them: on the wire, TLS would notice. NIXL writes by itself; there the notifications are
    held. Either way bytes that have arrived are spoilt."""

    def __init__(self, memory: EngineMemory, service: Any) -> None:
        """service: the worker's `DecodeService`."""
        self._memory = memory
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._held_back = 0  # messages that wait
        self._spoiling = False
        self._notes: list[bytes] = []
        tickets = service._rank.tickets
        self._take = tickets.take
        tickets.take = self._spoilt
        # In a process of its own; the writers' agents of this role are none.
        self._read_notes = NixlAgent.notes
        setattr(NixlAgent, "notes", lambda agent: self._held_notes(agent))  # noqa: B010
        write = StateChannelServicer._write

        def held_write(servicer: Any, messages: AsyncIterator[bytes], context: Any) -> Any:
            return write(servicer, self._held_messages(messages), context)

        setattr(StateChannelServicer, "_write", held_write)  # noqa: B010

        write_whole = StateChannelServicer._write_whole

        async def held_write_whole(servicer: Any, message: bytes, context: Any) -> bytes:
            return await write_whole(servicer, await self._held(message), context)

        setattr(StateChannelServicer, "_write_whole", held_write_whole)  # noqa: B010

    @property
    def holds(self) -> bool:
        return not self._flowing.is_set() and (self._held_back > 0 or bool(self._notes))

    def hold(self) -> None:
        """Hold back everything that arrives from now on, until `let_go`."""
        self._flowing.clear()

    async def let_go(self) -> None:
        """Returns once all that was held is on its way."""
        self._flowing.set()
        while self._held_back:
            await asyncio.sleep(0)

    def spoil(self) -> None:
        self._spoiling = True

    async def _held_messages(self, messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for message in messages:
            yield await self._held(message)

    async def _held(self, message: bytes) -> bytes:
        """Return the message, which may be spoilt then, when it may go on."""
        self._held_back += 1
        try:
            await self._flowing.wait()
        finally:
            self._held_back -= 1
        if self._spoiling and len(message) > SMALL_BYTES:
            self._spoiling = False
            message = message[:-1] + bytes([message[-1] ^ 1])
        return message

    def _held_notes(self, agent: NixlAgent) -> list[bytes]:
        """Return the notifications to deliver now. Runs on the poller's thread."""
        self._notes += self._read_notes(agent)
        if not self._flowing.is_set():
            return []
        notes, self._notes = self._notes, []
        return notes

    def _spoilt(self, claim: Any, segment: Segment, size: int, check: Any) -> None:
        def spoil_and_check(holder: StateRef) -> None:
            if self._spoiling:
                self._spoiling = False
                self._memory.read(segment, holder)[0][0] ^= 1
            check(holder)

        self._take(claim, segment, size, spoil_and_check)
