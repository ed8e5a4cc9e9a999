"""What requests own of the pools: who takes, grows and gives back slots and pages.

Only ids move here; the memory behind them is touched by forwards alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from baton.engine.errors import InvariantError
from baton.engine.memory.owners import Owner
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.state_pool import StatePool
from baton.engine.request import Request, Reservation


class RequestMemory:
    """One slot and a run of pages a request, owner LIVE."""

    def __init__(self, states: StatePool, pages: PagePool) -> None:
        self._states = states
        self._pages = pages
        self._page_size = pages.layout.page_size
        self._launched = 0

    def launch(self, sequence: int) -> None:
        """Forward `sequence` is planned: ids freed from now on may be touched by it."""
        self._launched = sequence

    def complete(self, sequence: int) -> None:
        """Forward `sequence` has finished on the device."""
        self._states.ids.complete(sequence)
        self._pages.ids.complete(sequence)

    @property
    def free_slots(self) -> int:
        return self._states.ids.available

    @property
    def free_pages(self) -> int:
        return self._pages.ids.available

    @property
    def total_pages(self) -> int:
        return self._pages.ids.size - 1

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self._page_size)

    def missing_pages(self, request: Request, tokens: int) -> int:
        """Pages that `request` lacks for `tokens` tokens."""
        return max(0, self.pages_for(tokens) - len(request.pages))

    @contextmanager
    def admission(self, requests: int) -> Iterator[None]:
        """One pass over the waiting queue: slots for up to `requests` are set aside together."""
        with self._states.ids.group(requests):
            yield

    def admit(self, request: Request, tokens: int) -> None:
        """Take the live slot and pages for `tokens` tokens. The caller saw that they are there."""
        slot = self._states.ids.take(Owner.LIVE)
        if slot is None:
            raise InvariantError(f"no slot for {request.request_id}, which was to be admitted")
        request.slot = slot
        if not self.grow(request, tokens):
            raise InvariantError(f"no pages for {request.request_id}, which was to be admitted")

    def grow(self, request: Request, tokens: int) -> bool:
        """Pages for `tokens` tokens; false, and nothing taken, when there are too few."""
        missing = self.missing_pages(request, tokens)
        if not missing:
            return True
        taken = self._pages.ids.take_many(missing, Owner.LIVE)
        if taken is None:
            return False
        request.pages = (*request.pages, *taken)
        return True

    def release(self, request: Request) -> None:
        """Give back all that `request` owns, fenced by the newest forward that may touch it."""
        if request.slot:
            self._states.ids.free(request.slot, Owner.LIVE, self._launched)
        self._pages.ids.free_many(request.pages, Owner.LIVE, self._launched)
        request.slot = 0
        request.pages = ()
        request.computed = 0

    def reserve(self, request_id: str, tokens: int, headroom: int) -> Reservation | None:
        """A slot and pages for a peer's writes, if `headroom` pages stay free beside them.

        A channel is outside the forwards' order, so only ids that no forward may touch will do.
        """
        slots, pages = self._states.ids, self._pages.ids
        needed = self.pages_for(tokens)
        if not slots.available_to_channels or pages.available_to_channels < needed:
            return None
        if pages.available - needed < headroom:
            return None
        slot = slots.take(Owner.TICKET)
        taken = pages.take_many(needed, Owner.TICKET)
        if slot is None or taken is None:
            raise InvariantError("a pool gave fewer ids than it said were available")
        return Reservation(request_id, slot, tuple(taken), tokens)

    def abandon(self, reservation: Reservation) -> None:
        """The peer is proved quiet: its ids are free at once."""
        self._states.ids.free(reservation.slot, Owner.TICKET)
        self._pages.ids.free_many(reservation.pages, Owner.TICKET)

    def adopt(self, request: Request, reservation: Reservation) -> None:
        """Ticket to live: `request` owns what was reserved, with the state already in it."""
        self._states.ids.move(reservation.slot, Owner.TICKET, Owner.LIVE)
        for page in reservation.pages:
            self._pages.ids.move(page, Owner.TICKET, Owner.LIVE)
        request.slot = reservation.slot
        request.pages = reservation.pages
        request.computed = reservation.tokens
