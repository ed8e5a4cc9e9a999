"""Memory that a dead ticket gave back, given to somebody else and watched: a write that comes late
would show."""

from typing import Any

import torch

from baton.core.handoff_ids import HandoffId
from baton.core.state_ref import StateRef
from baton.engine.engine import Engine
from baton.engine.layout.owners import Owner
from baton.engine.memory.id_pool import IdPool
from baton.engine.request.request import Reservation

WATCHED = "watched"
MARK = 0x5A
REMEMBERED = 50  # tickets


class Reissue:
    """A second owner of a dead ticket's memory on a decode rank, for one ticket at a time."""

    def __init__(self, engine: Engine, port: Any, service: Any) -> None:
        self._port = port
        self._holders: dict[str, StateRef] = {}  # by request id
        tickets = service._rank.tickets
        grant = tickets.grant

        def remembered(handoff: HandoffId, holder: StateRef, *args: Any, **more: Any):  # type: ignore[no-untyped-def]
            self._holders.setdefault(handoff.request_id, holder)
            if len(self._holders) > REMEMBERED:
                del self._holders[next(iter(self._holders))]
            return grant(handoff, holder, *args, **more)

        tickets.grant = remembered
        self._engine = engine
        self._watched: Reservation | None = None

    async def take(self, request_id: str) -> bool:
        """Reserve the request's former slot and pages anew and mark them. Return whether the
        request had a ticket whose slot and pages are all free."""
        holder = self._holders.pop(request_id, None)
        self._holders.clear()
        return holder is not None and await self._port.call(lambda _: self._mark(holder))

    async def give_back(self) -> bool:
        """Return whether every byte still has its mark."""
        return await self._port.call(self._check)

    def _mark(self, holder: StateRef) -> bool:
        engine = self._engine
        engine.flush_cache()
        slots, pages = engine.states.ids, engine.pages.ids
        if not _take(slots, (holder.slot,)):
            return False
        if not _take(pages, holder.pages):
            slots.free(holder.slot, Owner.TICKET)
            return False
        self._watched = Reservation(WATCHED, holder, owned=holder.pages)
        engine.reservations._open[WATCHED] = self._watched
        for block in self._blocks():
            block.fill_(MARK)
        return True

    def _check(self, engine: Engine) -> bool:
        intact = all(bool((block == MARK).all()) for block in self._blocks())
        assert self._watched is not None
        engine.reservations.abandon(self._watched)
        self._watched = None
        return intact

    def _blocks(self) -> list[torch.Tensor]:
        assert self._watched is not None
        engine, watched = self._engine, self._watched
        return [
            engine.states.storage[watched.state.slot],
            *(engine.pages.storage[page] for page in watched.state.pages),
        ]


def _take(pool: IdPool, wanted: tuple[int, ...]) -> bool:
    """These ids, for a channel: all or none. The pool chooses, so take all and give others back."""
    everything = set(pool.take_many(pool.available_to_channels, Owner.TICKET) or ())
    taken = everything.issuperset(wanted)
    pool.free_many(everything - set(wanted) if taken else everything, Owner.TICKET)
    return taken
