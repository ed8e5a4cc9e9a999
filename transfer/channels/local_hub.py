"""The registry by which the engines of one process find one another."""

import uuid
from dataclasses import dataclass

from baton.transfer.channels.ends import OnBytes
from baton.transfer.errors import ChannelError
from baton.transfer.memory.regions import Memory
from baton.transfer.tickets import TicketTable


@dataclass(frozen=True)
class Landing:
    """One engine that may be written to."""

    tickets: TicketTable
    memory: Memory
    on_bytes: OnBytes


class LocalHub:
    """A table of landings by name. One hub is handed to all engines of a process."""

    def __init__(self) -> None:
        self._landings: dict[bytes, Landing] = {}

    def add(self, landing: Landing) -> bytes:
        """Register the landing; return its name, which no other process has."""
        name = uuid.uuid4().bytes
        self._landings[name] = landing
        return name

    def remove(self, name: bytes) -> None:
        """Forget the landing. Idempotent."""
        self._landings.pop(name, None)

    def find(self, name: bytes) -> Landing:
        """Return the landing of that name. Raises ChannelError where it is not in this process."""
        landing = self._landings.get(name)
        if landing is None:
            raise ChannelError("it is in another process")
        return landing
