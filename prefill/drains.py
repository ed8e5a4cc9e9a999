"""The tickets that this worker may still be writing under, and the peers to tell when it no longer
is."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from baton.transfer.channels.ends import WriteOperation

Say = Callable[[], None]


@dataclass(frozen=True)
class WrittenTicket:
    """Unique over ranks and their restarts."""

    rank: str  # worker id
    incarnation: int
    ticket_id: int
    generation: int


class Drains:
    """Outlives the streams: a rank that lost one may ask again by the next."""

    def __init__(self) -> None:
        self._open: dict[WrittenTicket, list[Say]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def opened(self, ticket: WrittenTicket) -> None:
        """Writing begins: whoever asks is told when it is over."""
        self._open[ticket] = []

    def closed(self, ticket: WrittenTicket) -> None:
        """All has arrived, or has been dropped."""
        for say in self._open.pop(ticket, ()):
            say()

    def drain(self, ticket: WrittenTicket, writing: WriteOperation, then: Say) -> None:
        """After a cancel: `then`, and whoever asked, once nothing is under way."""

        async def wait() -> None:
            await writing.drained()
            then()
            self.closed(ticket)

        self.end(wait())

    def end(self, ending: Coroutine[Any, Any, None]) -> None:
        """See it through, whoever is cancelled meanwhile."""
        task = asyncio.ensure_future(ending)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def ask(self, ticket: WrittenTicket, say: Say) -> None:
        """`say` now, if this worker writes nothing under the ticket, or when it is over."""
        waiting = self._open.get(ticket)
        if waiting is None:
            say()
        else:
            waiting.append(say)

    async def wait(self) -> None:
        """Wait until every drain is over. The drains go on if the waiting task is cancelled."""
        if self._tasks:
            await asyncio.wait(self._tasks)
