"""The memory that peers may write: reservations, and those in quarantine."""

from collections.abc import Iterator

from baton.core.cache_salt import SHARED
from baton.core.errors import InvariantError, RequestError
from baton.core.state_ref import StateRef
from baton.engine.cache.cached_pools import CachedPools
from baton.engine.cache.prefix_node import Snapshot
from baton.engine.layout.owners import Owner
from baton.engine.layout.token_key import TOKEN_BYTES
from baton.engine.request.request import Request, Reservation
from baton.engine.settings.counters import Counters


class Reservations:
    """Slots and pages of tickets, by request id. Used on the engine's thread.

    A peer's writes are outside the order of the forwards, so a reservation takes only ids that no
    forward may touch. It ends in one of three ways: `adopt` and `keep` hand it over to a request
    or to the cache; `abandon` frees it. A reservation whose peer may still write is put into
    quarantine until `abandon`.
    """

    def __init__(self, pools: CachedPools, counters: Counters) -> None:
        self._pools = pools
        self._counters = counters
        self._open: dict[str, Reservation] = {}
        self._quarantined: dict[str, Reservation] = {}
        # Tickets that wait for a forward: its number, and the pages that were evicted for them.
        self._promised: dict[str, tuple[int, int]] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._open or request_id in self._quarantined

    def __len__(self) -> int:
        """Return the number of open reservations, without those in quarantine."""
        return len(self._open)

    def __iter__(self) -> Iterator[Reservation]:
        """Yield the open reservations."""
        return iter(self._open.values())

    @property
    def quarantined(self) -> list[Reservation]:
        return list(self._quarantined.values())

    def reserve(
        self, request_id: str, tokens: int, headroom: int, key: bytes = b"", salt: bytes = SHARED
    ) -> Reservation | None:
        """Take a slot and pages for a peer's writes if `headroom` pages stay free beside them.

        key: those tokens, as far as they are known. Pages that hold their KV under `salt` already
        are the cache's, and stay locked until the reservation is over. None when there is no room
        now.
        """
        pools = self._pools
        known = key[: tokens * TOKEN_BYTES] if pools.caching else b""
        node, cached = pools.cache.hold_kv(known, salt)
        needed = pools.pages_for(tokens) - len(cached)
        taken = self._take_ids(request_id, needed, headroom)
        if taken is None:
            pools.cache.unlock_pages(node)
            return None
        slot, own = taken
        state = StateRef(slot, (*cached, *own), tokens, kv_from=len(cached) * pools.page_size)
        reservation = Reservation(request_id, state, node, own, salt)
        self._open[request_id] = reservation
        return reservation

    def _take_ids(
        self, request_id: str, needed: int, headroom: int
    ) -> tuple[int, tuple[int, ...]] | None:
        """Take a slot and `needed` pages; None, and nothing taken, when there is no room.

        What the cache evicts for a ticket may become usable only after the forward in flight. The
        ticket asks again and again until then, and must not cost the cache more each time, so what
        was evicted for it is remembered until that forward has completed.
        """
        pools = self._pools
        slots, pages = pools.slots, pools.pages
        self._forget_promises()
        promised = sum(count for _, count in self._promised.values())
        if request_id in self._promised or pools.free_pages - promised - needed < headroom:
            return None
        if slots.available <= len(self._promised):
            pools.evict_for_slots(1)
        pools.evict_for_pages(promised + needed - pages.available)
        if not slots.available_to_channels or pages.available_to_channels < needed:
            if pools.launched > pools.completed:
                self._promised[request_id] = (pools.launched, needed)
            return None
        slot = slots.take(Owner.TICKET)
        taken = pages.take_many(needed, Owner.TICKET)
        if slot is None or taken is None:
            raise InvariantError("a pool gave fewer ids than it said were available")
        return slot, tuple(taken)

    def promised(self, request_id: str) -> bool:
        """Return true if memory was evicted for a reservation that may have it after the forward in
        flight: ask again then."""
        return request_id in self._promised

    def _forget_promises(self) -> None:
        completed = self._pools.completed
        waiting = self._promised.items()
        self._promised = {name: each for name, each in waiting if each[0] > completed}

    def check_open(self, reservation: Reservation) -> None:
        """Raise RequestError unless `reservation` is open."""
        if self._open.get(reservation.request_id) is not reservation:
            raise RequestError(
                f"no such reservation for {reservation.request_id}: abandoned or adopted already",
                "request_id",
            )

    def check_adoptable(self, reservation: Reservation, salt: bytes) -> None:
        """Raise RequestError unless `reservation` is open and a request of `salt` may have it."""
        self.check_open(reservation)
        if salt != reservation.cache_salt:
            raise RequestError(
                "the reservation was made with another cache salt: its pages may be another "
                "client's",
                "cache_salt",
            )

    def quarantine(self, reservation: Reservation) -> None:
        """Keep the memory from everybody until `abandon`: its peer may still write.

        Pages of the cache stay locked with it. It is beside the tickets, as far as
        `MemoryPlan.quarantine_slots` go. Raises RequestError unless `reservation` is open.
        """
        self._close(reservation)
        self._move(reservation, Owner.QUARANTINE)
        self._quarantined[reservation.request_id] = reservation

    def abandon(self, reservation: Reservation) -> None:
        """Free a reservation, open or in quarantine. The caller has proof that no peer writes to
        it any more, so its ids are free at once. Raises RequestError where it is over already."""
        owner = Owner.TICKET
        if self._quarantined.get(reservation.request_id) is reservation:
            del self._quarantined[reservation.request_id]
            owner = Owner.QUARANTINE
        else:
            self._close(reservation)
        self._pools.slots.free(reservation.state.slot, owner)
        self._pools.pages.free_many(reservation.owned, owner)
        self._unlock(reservation)

    def adopt(self, request: Request, reservation: Reservation) -> None:
        """Give `request` what was reserved, with the state of its tokens already in it."""
        state = reservation.state
        self._close(reservation)
        self._move(reservation, Owner.LIVE)
        request.slot = request.state_slot = state.slot
        request.pages = list(state.pages)
        request.table_row = self._pools.take_row(state.pages, request.history)
        request.owned = set(reservation.owned)
        request.lengths.computed = request.lengths.settled = state.tokens
        request.admissions += 1
        request.node = reservation.node
        self._counters.adopted_tokens += state.tokens
        self._counters.transfer_hit_tokens += state.kv_from

    def keep(self, reservation: Reservation, key: bytes) -> None:
        """Give the cache a prefix, `key`, whose pages and state a peer has written."""
        self._close(reservation)
        pools, state = self._pools, reservation.state
        kept = [Snapshot(state.tokens, state.slot)] if pools.stateful else []
        done = pools.keep(key, state.pages, kept, salt=reservation.cache_salt)
        spare = set(done.spare_pages)
        for page in reservation.owned:
            if page in spare:
                pools.pages.free(page, Owner.TICKET)
            else:
                pools.pages.move(page, Owner.TICKET, Owner.CACHE)
        if kept and not done.spare_slots:
            pools.slots.move(state.slot, Owner.TICKET, Owner.CACHE)
        else:
            pools.slots.free(state.slot, Owner.TICKET)
        self._unlock(reservation)

    def _close(self, reservation: Reservation) -> None:
        self.check_open(reservation)
        del self._open[reservation.request_id]

    def _move(self, reservation: Reservation, owner: Owner) -> None:
        self._pools.slots.move(reservation.state.slot, Owner.TICKET, owner)
        for page in reservation.owned:
            self._pools.pages.move(page, Owner.TICKET, owner)

    def _unlock(self, reservation: Reservation) -> None:
        if reservation.node is not None:
            self._pools.cache.unlock_pages(reservation.node)
