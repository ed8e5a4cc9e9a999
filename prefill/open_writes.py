"""The tickets under which this worker may still be writing, and the peers to notify when it no
longer is."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from baton.core.handoff_ids import TicketId
from baton.core.supervised import AsyncWork, OnFailure, ProcessSupervisor, spawn
from baton.transfer.channels.ends import WriteOperation

Say = Callable[[], None]


@dataclass(frozen=True)
class WrittenTicket:
    """The identity of a ticket, unique over ranks and their restarts."""

    rank: str  # worker id
    incarnation: int
    ticket: TicketId


class OpenWrites:
    """The open tickets of all ranks, and the tasks that end their writes.

    It outlives the streams: a rank that lost its stream may ask again over the next one.
    """

    def __init__(self, owner: ProcessSupervisor) -> None:
        self._owner = owner
        self._open: dict[WrittenTicket, list[Say]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def opened(self, ticket: WrittenTicket) -> None:
        """Note that writing under `ticket` begins. Ranks that ask from now on wait for its end."""
        self._open[ticket] = []

    def closed(self, ticket: WrittenTicket) -> None:
        """Note that nothing more is written under `ticket`, and notify the ranks that asked."""
        for say in self._open.pop(ticket, ()):
            say()

    def drain(self, ticket: WrittenTicket, writing: WriteOperation, then: Say) -> None:
        """Call `then` once a cancelled `writing` has ended, and notify the ranks that asked."""

        async def wait() -> None:
            await writing.drained()
            then()
            self.closed(ticket)

        self.end(wait, f"drain of ticket {ticket.ticket.number} of {ticket.rank}")

    def end(self, ending: AsyncWork, name: str) -> None:
        """Run `ending` to its end, also when the caller is cancelled meanwhile."""
        # END: nobody knows any more whether something is under way, so the rank would keep its
        # memory for ever. The end of this process is a proof that nothing is.
        task = spawn(ending, self._owner, OnFailure.END, name, may_return=True)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def ask(self, ticket: WrittenTicket, say: Say) -> None:
        """Call `say` once this worker writes nothing under the ticket, which may be now."""
        waiting = self._open.get(ticket)
        if waiting is None:
            say()
        else:
            waiting.append(say)

    async def wait(self) -> None:
        """Wait until every drain is over. The drains go on if the waiting task is cancelled."""
        if self._tasks:
            await asyncio.wait(self._tasks)
