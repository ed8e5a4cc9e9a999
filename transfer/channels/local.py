"""The channel between two engines of one process: one copy, from pool to pool."""

import asyncio

from baton.core.handoff_ids import TicketId
from baton.core.state_ref import StateRef
from baton.core.supervised import child
from baton.proto.common_pb2 import WorkerIdentity
from baton.transfer.channels import frames
from baton.transfer.channels.base import Capabilities, Channel, ChannelContext
from baton.transfer.channels.ends import OnMoving
from baton.transfer.channels.link_rate import LinkRate
from baton.transfer.channels.local_hub import Landing, LocalHub
from baton.transfer.errors import ChannelError
from baton.transfer.memory.segments import Segment, nbytes
from baton.transfer.tickets import Claim, Received

SEGMENT_BYTES = 4 << 20
INLINE_BYTES = 128 << 10
"""Segments up to this size are copied on the loop's own thread: a hop to another costs more."""


class LocalChannel(Channel):
    """Copies between pools under the ticket's lock. The worker must have a hub."""

    name = "local"
    capabilities = Capabilities(push=True, in_process=True)

    async def open_receiver(self) -> "LocalReceiver":
        context = self.context
        landing = Landing(context.tickets, context.memory, context.count_received)
        hub = self._hub()
        return LocalReceiver(hub, hub.add(landing))

    async def connect_sender(self, endpoint: bytes, peer: WorkerIdentity) -> "LocalSender":
        return LocalSender(self._hub().find(endpoint), self.context)

    def _hub(self) -> LocalHub:
        if self.context.hub is None:
            raise ChannelError("no other engine runs in this worker's process")
        return self.context.hub


class LocalReceiver:
    """A landing in the hub, for as long as it is open."""

    def __init__(self, hub: LocalHub, name: bytes) -> None:
        self._hub = hub
        self.endpoint = name

    def chosen(self) -> None:
        """Do nothing: the sender has found the landing."""

    def moving(self, ticket: TicketId, under_way: bool, segments: int) -> None:
        """Do nothing: the sender's thread copies."""

    async def close(self) -> None:
        self._hub.remove(self.endpoint)


class LocalSender:
    """A landing of another engine, and this engine's memory."""

    segment_bytes = SEGMENT_BYTES

    def __init__(self, landing: Landing, context: ChannelContext) -> None:
        self._landing = landing
        self._context = context
        self.link = LinkRate()

    def open(
        self, claim: Claim, target: StateRef, on_moving: OnMoving, size: int | None = None
    ) -> "LocalWriteOperation":
        """Begin a hand-off. `target` is not used: the ticket names it."""
        return LocalWriteOperation(self._landing, claim, self._context, self.link)

    def heard(self) -> None:
        """Do nothing: the ticket fences every copy."""

    async def lost(self) -> None:
        """Wait for ever: memory of this process is not lost."""
        await asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        """Do nothing: the sender holds nothing."""


class LocalWriteOperation:
    """One hand-off. Each segment has arrived when its `write` returns."""

    def __init__(
        self, landing: Landing, claim: Claim, context: ChannelContext, link: LinkRate
    ) -> None:
        self._landing = landing
        self._claim = claim
        self._context = context
        self._link = link
        self._admitted = self._cancelled = False
        self._sent = Received(0, 0, 0)
        self._copying: asyncio.Future[None] | None = None

    async def write(self, segment: Segment, holder: StateRef) -> None:
        if self._cancelled:
            raise ChannelError("the write was cancelled")
        if not self._admitted:
            self._landing.tickets.admit(self._claim)
            self._admitted = True
        size = nbytes(segment, self._context.memory.pages)
        arrived = 0
        self._link.begin()
        try:
            if size <= INLINE_BYTES:
                self._copy(segment, holder, size)
            else:
                copy = asyncio.to_thread(self._copy, segment, holder, size)
                self._copying = child(copy)
                await asyncio.shield(self._copying)
            arrived = size
        finally:
            self._link.end(arrived)
        self._sent = self._sent.plus(segment.kind, size)
        self._context.count_sent(segment.kind, size)
        self._landing.on_bytes(segment.kind, size)

    async def flush(self) -> None:
        """Do nothing: every write is over when it returns."""

    async def finish(self) -> Received:
        return self._sent

    def cancel(self) -> None:
        self._cancelled = True

    async def drained(self) -> None:
        """Wait for the copy that is under way: it cannot be stopped, and is short."""
        if self._copying is not None:
            await asyncio.wait([self._copying])

    def _copy(self, segment: Segment, source: StateRef, size: int) -> None:
        """Copy under the ticket's lock, on any thread. Raises what the ticket refuses with."""
        ours, there = self._context.memory, self._landing.memory
        payload = ours.read(segment, source)

        def put(target: StateRef) -> None:
            there.write_pieces(segment, target, payload)
            if self._context.verify:
                checked = ours.checked(segment, source, payload)
                header = frames.Header(segment, frames.checksum_of(segment, checked))
                header.check(there.written(segment, target))

        self._landing.tickets.take(self._claim, segment, size, put)
