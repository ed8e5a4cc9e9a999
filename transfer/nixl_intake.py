"""The receiver's end of NIXL: an agent a peer, looked at only while that peer writes."""

import asyncio
import itertools
import logging
import threading

from baton.proto import handoff_pb2
from baton.transfer import frames
from baton.transfer.channel import OnBytes
from baton.transfer.errors import ChannelError, TicketError, TransferError
from baton.transfer.nixl_agent import NixlAgent
from baton.transfer.nixl_outlet import NIXL
from baton.transfer.nixl_plan import wire_bytes
from baton.transfer.nixl_reach import to_proto
from baton.transfer.poller import Poller, Work
from baton.transfer.regions import EngineMemory, Holder
from baton.transfer.segments import nbytes
from baton.transfer.tickets import Claim, TicketTable

log = logging.getLogger(__name__)


class NixlSource:
    name = NIXL

    def __init__(
        self,
        name: str,
        memory: EngineMemory,
        tickets: TicketTable,
        poller: Poller,
        on_bytes: OnBytes,
    ) -> None:
        """name: of its agents; unique over workers and their restarts."""
        self._name = name
        self._memory = memory
        self._tickets = tickets
        self._poller = poller
        self._on_bytes = on_bytes
        self._numbers = itertools.count(1)

    async def open(self) -> "NixlIntake":
        name = f"{self._name}/r{next(self._numbers)}"
        agent = await asyncio.to_thread(NixlAgent, name, self._memory.spans)
        return NixlIntake(agent, self._memory, self._tickets, self._poller, self._on_bytes)


class NixlIntake:
    """Looked at until the writer has chosen (its probe needs an answer), and from then on while it
    says that a write is under way, or until the segments that it has posted are here."""

    one_sided = True

    def __init__(
        self,
        agent: NixlAgent,
        memory: EngineMemory,
        tickets: TicketTable,
        poller: Poller,
        on_bytes: OnBytes,
    ) -> None:
        self._agent: NixlAgent | None = agent
        self._memory = memory
        self._tickets = tickets
        self._poller = poller
        self._on_bytes = on_bytes
        self._lock = threading.Lock()
        self._probing = True
        self._moving: dict[tuple[int, int], tuple[bool, int]] = {}  # by ticket and generation
        self.endpoint = handoff_pb2.NixlEndpoint(
            metadata=agent.metadata,
            agent=agent.name,
            pools=[to_proto(span) for span in memory.spans],
        ).SerializeToString()
        poller.wake(self)

    def chosen(self) -> None:
        self._probing = False

    def moving(self, ticket_id: int, generation: int, under_way: bool, segments: int) -> None:
        with self._lock:
            self._moving[ticket_id, generation] = (under_way, segments)
        self._poller.wake(self)

    async def close(self) -> None:
        await self._poller.run(self._drop)

    def poll(self) -> Work:
        """On the poller's thread."""
        if self._agent is None:
            return Work.NONE
        try:
            notes = self._agent.notes()
        except ChannelError as error:
            # The writer finds out, too, and begins a new stream.
            log.warning("%s", error)
            return Work.NONE
        for note in notes:
            if note != frames.PROBE:
                self._take(note)
        if notes:
            return Work.MOVING
        return Work.WAITING if self._probing or self._awaited() else Work.NONE

    def _drop(self) -> None:
        """On the poller's thread."""
        agent, self._agent = self._agent, None
        if agent is not None:
            agent.close()

    def _take(self, note: bytes) -> None:
        claim: Claim | None = None
        try:
            claim, header = frames.decode_note(note)
            self._tickets.admit(claim)
            memory, segment = self._memory, header.segment

            def check(holder: Holder) -> None:
                if header.checksum is not None:
                    header.check(memory.read(segment, holder))
                self._on_bytes(segment.kind, wire_bytes(segment, memory) + len(note))

            self._tickets.take(claim, segment, nbytes(segment, memory.pages), check)
        except TicketError as late:
            log.info("a write landed after its ticket's end: %s", late)
        except TransferError as error:
            log.warning("a write cannot be used: %s", error)
            if claim is not None:
                self._tickets.broken(claim, error)

    def _awaited(self) -> bool:
        """Whether anything is under way; forgets what is not."""
        with self._lock:
            for name, (under_way, segments) in list(self._moving.items()):
                here = self._tickets.segments(*name)
                if not under_way and (here is None or here >= segments):
                    del self._moving[name]
            return bool(self._moving)
