"""A fixture that holds up or spoils what a decode rank receives, whichever channel carries it."""

from dataclasses import replace
from typing import Any

from chaos.wire import Wire

from baton.transfer.channels.grpc.channel import GrpcChannel
from baton.transfer.channels.nixl.agent import NixlAgent
from baton.transfer.memory.regions import EngineMemory, Holder
from baton.transfer.memory.segments import Segment


class Spoiler:
    """A fault in what a decode rank receives. For gRPC, a proxy holds up and spoils the bytes on
    the wire. NIXL writes by itself; there the notifications are held, and bytes that have arrived
    are spoilt."""

    def __init__(self, memory: EngineMemory, address: str, service: Any) -> None:
        """address: of the worker's gRPC server. service: its `DecodeService`."""
        self._memory = memory
        self.wire = Wire(address)
        self._holding = False
        self._spoiling = False
        self._notes: list[bytes] = []
        for channel in service._channels.handoffs._channels:
            if isinstance(channel, GrpcChannel):
                channel.context = replace(channel.context, data_address=self.wire.address)
        tickets = service._rank.tickets
        self._take = tickets.take
        tickets.take = self._spoilt
        # In a process of its own; the writers' agents of this role are none.
        self._read_notes = NixlAgent.notes
        NixlAgent.notes = lambda agent: self._held_notes(agent)  # type: ignore[method-assign]

    @property
    def holds(self) -> bool:
        return self.wire.holds or (self._holding and bool(self._notes))

    def hold(self) -> None:
        self._holding = True
        self.wire.hold()

    async def let_go(self) -> None:
        self._holding = False
        await self.wire.let_go()

    def spoil(self) -> None:
        self._spoiling = True
        self.wire.spoil()

    def _held_notes(self, agent: NixlAgent) -> list[bytes]:
        """Return the notifications to deliver now. Runs on the poller's thread."""
        self._notes += self._read_notes(agent)
        if self._holding:
            return []
        notes, self._notes = self._notes, []
        return notes

    def _spoilt(self, claim: Any, segment: Segment, size: int, check: Any) -> None:
        def spoil_and_check(holder: Holder) -> None:
            if self._spoiling:
                self._spoiling = False
                self._memory.read(segment, holder)[0][0] ^= 1
            check(holder)

        self._take(claim, segment, size, spoil_and_check)
