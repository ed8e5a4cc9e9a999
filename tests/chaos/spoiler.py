"""What a decode rank is sent, held up or spoilt, whatever channel brings it."""

from typing import Any

from chaos.wire import Wire

from baton.transfer.grpc_channel import GRPC
from baton.transfer.nixl_agent import NixlAgent
from baton.transfer.regions import EngineMemory, Holder
from baton.transfer.segments import Segment


class Spoiler:
    """By gRPC it is the bytes on the wire, in a proxy; by NIXL, which writes by itself, it is the
    notifications that are held, and the bytes that are there that are spoilt."""

    def __init__(self, memory: EngineMemory, address: str, service: Any) -> None:
        """address: of the worker's gRPC server. service: its `DecodeService`."""
        self._memory = memory
        self.wire = Wire(address)
        self._holding = False
        self._spoiling = False
        self._notes: list[bytes] = []
        for source in service._inlets._sources:
            if source.name == GRPC:
                source._address = self.wire.address
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
        """On the poller's thread."""
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
