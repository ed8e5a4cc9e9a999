"""The receiving end of NIXL: one agent for each peer, polled only while that peer writes."""

import logging
import threading

from baton.core.handoff_ids import TicketId
from baton.core.state_ref import StateRef
from baton.transfer.channels import frames
from baton.transfer.channels.base import ChannelContext
from baton.transfer.channels.nixl.agent import NixlAgent
from baton.transfer.channels.nixl.endpoint import encode_endpoint
from baton.transfer.channels.nixl.plan import wire_bytes
from baton.transfer.channels.poller import Work
from baton.transfer.errors import ChannelError, TicketError, TransferError
from baton.transfer.memory.segments import nbytes
from baton.transfer.tickets import Claim

log = logging.getLogger(__name__)


class NixlReceiver:
    """The agent that one peer writes to.

    It is polled until the writer has chosen a channel, because its probe needs an answer. Later it
    is polled while the writer reports a write under way, or posted segments have not arrived.
    """

    def __init__(self, agent: NixlAgent, context: ChannelContext) -> None:
        self._agent: NixlAgent | None = agent
        self._context = context
        self._poller = context.poller
        self._tickets = context.tickets
        self._lock = threading.Lock()
        self._probing = True
        self._moving: dict[TicketId, tuple[bool, int]] = {}
        self.endpoint = encode_endpoint(agent, context.memory.spans)
        self._poller.wake(self)

    def chosen(self) -> None:
        self._probing = False

    def moving(self, ticket: TicketId, under_way: bool, segments: int) -> None:
        with self._lock:
            if under_way or ticket in self._moving:  # else nothing of it is looked for
                self._moving[ticket] = (under_way, segments)
        if under_way:
            self._poller.wake(self)

    async def close(self) -> None:
        await self._poller.run(self._drop)

    def poll(self) -> Work:
        """Take the peer's notes. Called on the poller's thread."""
        if self._agent is None:
            return Work.NONE
        notes = self._agent.notes()
        for note in notes:
            if note != frames.PROBE:
                self._take(note)
        if notes:
            return Work.MOVING
        return Work.WAITING if self._probing or self._awaited() else Work.NONE

    def fail(self, why: ChannelError) -> None:
        """Destroy the agent, and tell the owners of the tickets that the peer writes under. Called
        on the poller's thread."""
        log.warning("%s", why)
        self._drop()
        self._awaited()
        with self._lock:
            under_way = list(self._moving)
        for ticket in under_way:
            self._tickets.lost(ticket, why)

    def _drop(self) -> None:
        """Destroy the agent. Called on the poller's thread."""
        agent, self._agent = self._agent, None
        if agent is not None:
            agent.close()

    def _take(self, note: bytes) -> None:
        claim: Claim | None = None
        try:
            claim, header = frames.decode_note(note)
            self._tickets.admit(claim)
            memory, segment = self._context.memory, header.segment

            def check(holder: StateRef) -> None:
                if header.checksum is not None:
                    header.check(memory.written(segment, holder))
                self._context.count_received(segment.kind, wire_bytes(segment, memory) + len(note))

            self._tickets.take(claim, segment, nbytes(segment, memory.pages), check)
        except TicketError as late:
            log.info("ignored a write that arrived after its ticket had ended: %s", late)
        except TransferError as error:
            log.warning("cannot use a write: %s", error)
            if claim is not None:
                self._tickets.broken(claim, error)

    def _awaited(self) -> bool:
        """Return True while any write is under way. Forgets the hand-offs that have ended."""
        with self._lock:
            for ticket, (under_way, segments) in list(self._moving.items()):
                here = self._tickets.segments(ticket)
                if not under_way and (here is None or here >= segments):
                    del self._moving[ticket]
            return bool(self._moving)
