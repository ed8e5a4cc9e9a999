"""Two engines in one process: one copy, from pool to pool."""

import asyncio
import uuid
from dataclasses import dataclass

from baton.transfer.channel import OnBytes, OnMoving
from baton.transfer.errors import ChannelError
from baton.transfer.frames import Header, checksum_of
from baton.transfer.regions import EngineMemory, Holder
from baton.transfer.segments import Segment, nbytes
from baton.transfer.tickets import Claim, Received, TicketTable

LOCAL = "local"
SEGMENT_BYTES = 4 << 20
INLINE_BYTES = 128 << 10
"""Copied on the loop's own thread: a hop to another costs more."""


@dataclass(frozen=True)
class Landing:
    """One engine that may be written to."""

    tickets: TicketTable
    memory: EngineMemory
    on_bytes: OnBytes


class LocalHub:
    """Where engines of one process find one another: handed to all of them."""

    def __init__(self) -> None:
        self._landings: dict[bytes, Landing] = {}

    def add(self, landing: Landing) -> bytes:
        """Its name, unlike any in another process."""
        name = uuid.uuid4().bytes
        self._landings[name] = landing
        return name

    def remove(self, name: bytes) -> None:
        self._landings.pop(name, None)

    def find(self, name: bytes) -> Landing:
        """Raises ChannelError."""
        landing = self._landings.get(name)
        if landing is None:
            raise ChannelError("it is in another process")
        return landing


class LocalSource:
    name = LOCAL

    def __init__(self, hub: LocalHub, landing: Landing) -> None:
        self._hub = hub
        self._landing = landing

    async def open(self) -> "LocalIntake":
        return LocalIntake(self._hub, self._hub.add(self._landing))


class LocalIntake:
    one_sided = False  # the ticket's lock is round every copy

    def __init__(self, hub: LocalHub, name: bytes) -> None:
        self._hub = hub
        self.endpoint = name

    def chosen(self) -> None:
        """Nothing: the writer has found what it needs."""

    def moving(self, ticket_id: int, generation: int, under_way: bool, segments: int) -> None:
        """Nothing: the writer's thread copies."""

    async def close(self) -> None:
        self._hub.remove(self.endpoint)


class LocalOutlet:
    name = LOCAL

    def __init__(
        self, hub: LocalHub, memory: EngineMemory, *, verify: bool, on_bytes: OnBytes
    ) -> None:
        self._hub = hub
        self._memory = memory
        self._verify = verify
        self._on_bytes = on_bytes

    async def connect(self, endpoint: bytes) -> "LocalConnection":
        return LocalConnection(self._hub.find(endpoint), self._memory, self._verify, self._on_bytes)


class LocalConnection:
    segment_bytes = SEGMENT_BYTES

    def __init__(
        self, landing: Landing, memory: EngineMemory, verify: bool, on_bytes: OnBytes
    ) -> None:
        self._landing = landing
        self._memory = memory
        self._verify = verify
        self._on_bytes = on_bytes

    def open(self, claim: Claim, target: Holder, on_moving: OnMoving) -> "LocalWriting":
        """target: the ticket names it."""
        return LocalWriting(self._landing, claim, self._memory, self._verify, self._on_bytes)

    def heard(self) -> None:
        """Nothing: the ticket fences."""

    async def lost(self) -> None:
        """Never."""
        await asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        """Nothing is kept."""


class LocalWriting:
    """Each segment is there when its `write` returns."""

    def __init__(
        self,
        landing: Landing,
        claim: Claim,
        memory: EngineMemory,
        verify: bool,
        on_bytes: OnBytes,
    ) -> None:
        self._landing = landing
        self._claim = claim
        self._memory = memory
        self._verify = verify
        self._on_bytes = on_bytes
        self._admitted = self._cancelled = False
        self._sent = Received(0, 0, 0)
        self._copying: asyncio.Future[None] | None = None

    async def write(self, segment: Segment, holder: Holder) -> None:
        if self._cancelled:
            raise ChannelError("the write was cancelled")
        if not self._admitted:
            self._landing.tickets.admit(self._claim)
            self._admitted = True
        size = nbytes(segment, self._memory.pages)
        if size <= INLINE_BYTES:
            self._copy(segment, holder, size)
        else:
            copy = asyncio.to_thread(self._copy, segment, holder, size)
            self._copying = asyncio.ensure_future(copy)
            await asyncio.shield(self._copying)
        self._sent = self._sent.plus(segment.kind, size)
        self._on_bytes(segment.kind, size)
        self._landing.on_bytes(segment.kind, size)

    async def flush(self) -> None:
        """Nothing: see `write`."""

    async def finish(self) -> Received:
        return self._sent

    def cancel(self) -> None:
        self._cancelled = True

    async def drained(self) -> None:
        """A copy cannot be stopped, and ends in a moment."""
        if self._copying is not None:
            await asyncio.wait([self._copying])

    def _copy(self, segment: Segment, source: Holder, size: int) -> None:
        """On any thread. Raises what the ticket refuses with."""
        there = self._landing.memory
        payload = self._memory.read(segment, source)

        def put(target: Holder) -> None:
            there.write_pieces(segment, target, payload)
            if self._verify:
                header = Header(segment, checksum_of(segment, payload))
                header.check(there.read(segment, target))

        self._landing.tickets.take(self._claim, segment, size, put)
