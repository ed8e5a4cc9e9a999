"""What requests own of the pools, and what they share through the prefix cache.

Only ids move here; the memory behind them is touched by forwards alone. Live slots, track slots
and tickets never wait for the cache: it is evicted first.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from baton.engine.batch import Tracked
from baton.engine.counters import Counters
from baton.engine.errors import InvariantError
from baton.engine.memory.owners import Owner
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.state_pool import StatePool
from baton.engine.prefix_cache import TOKEN_BYTES, Match, PrefixCache
from baton.engine.request import Request, Reservation


class RequestMemory:
    """One live slot and a run of pages a request; the first pages may be the cache's."""

    def __init__(
        self, states: StatePool, pages: PagePool, caching: bool, counters: Counters
    ) -> None:
        self._slots = states.ids
        self._pages = pages.ids
        self.page_size = pages.layout.page_size
        self.stateful = bool(states.layout.layers)
        self._caching = caching
        self._counters = counters
        self._launched = 0
        self._completed = 0
        # Of tickets that wait for a forward: its number, and the pages that were made free.
        self._promised: dict[str, tuple[int, int]] = {}
        self.cache = PrefixCache(self.page_size, self.stateful, self._evicted)

    def launch(self, sequence: int) -> None:
        """Forward `sequence` is planned: ids freed from now on may be touched by it."""
        self._launched = sequence

    def complete(self, sequence: int) -> None:
        """Forward `sequence` has finished on the device."""
        self._completed = sequence
        self._slots.complete(sequence)
        self._pages.complete(sequence)
        if self._promised:
            waiting = self._promised.items()
            self._promised = {name: each for name, each in waiting if each[0] > sequence}

    # Room ----------------------------------------------------------------------------------

    @property
    def free_slots(self) -> int:
        """Slots that could be had now, the cache's included."""
        return self._slots.available + self.cache.evictable_snapshots

    @property
    def free_pages(self) -> int:
        """Pages that could be had now, the cache's included."""
        return self._pages.available + self.cache.evictable_pages

    @property
    def total_pages(self) -> int:
        return self._pages.size - 1

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def missing_pages(self, request: Request, tokens: int) -> int:
        """Pages that `request` lacks for `tokens` tokens."""
        return max(0, self.pages_for(tokens) - len(request.pages))

    def _evicted(self, pages: list[int], slots: list[int]) -> None:
        """The cache lets these go. A forward in flight may still read them."""
        self._pages.free_many(pages, Owner.CACHE, self._launched)
        self._slots.free_many(slots, Owner.CACHE, self._launched)
        self._counters.pages_evicted += len(pages)
        self._counters.snapshots_evicted += len(slots)

    def _take_slot(self, owner: Owner) -> int | None:
        if not self._slots.available:
            self.cache.evict_snapshots(1)
        return self._slots.take(owner)

    def _take_pages(self, count: int, owner: Owner) -> list[int] | None:
        """All or none."""
        short = count - self._pages.available
        if short > self.cache.evictable_pages:
            return None
        if short > 0:
            self.cache.evict_pages(short)
        return self._pages.take_many(count, owner)

    # Admission -----------------------------------------------------------------------------

    @contextmanager
    def admission(self, requests: int) -> Iterator[None]:
        """One pass over the waiting queue: slots for up to `requests` are set aside together."""
        with self._slots.group(requests):
            yield

    def resume(self, request: Request, limit: int, grid: int) -> Match:
        """Give `request`, which owns nothing, the longest cached prefix of at most `limit` tokens.

        Its pages and its snapshot stay locked until `release`, the snapshot at the latest until
        `snapshot_read`.
        """
        match = self.cache.match(request.key(request.target), max(0, limit))
        self.cache.lock(match.node)
        request.node = request.resumes_from = match.node
        request.pages = match.pages
        request.computed = request.settled = match.depth
        request.branch = self.cache.branch_point(match, grid)
        return match

    def count_hit(self, request: Request, match: Match) -> None:
        """`request` is admitted with the prefix that `resume` gave it."""
        counters = self._counters
        counters.prompt_tokens += request.target
        counters.hit_tokens_state += request.computed
        counters.hit_tokens_kv += match.kv_depth
        counters.branch_points += request.branch is not None
        if not request.admissions:
            request.cached_tokens = request.computed
        request.admissions += 1

    def count_preemption(self) -> None:
        self._counters.preemptions += 1

    def admit(self, request: Request, tokens: int) -> None:
        """Take the live slot and pages for `tokens` tokens. The caller saw that they are there."""
        slot = self._take_slot(request.owner)
        if slot is None:
            raise InvariantError(f"no slot for {request.request_id}, which was to be admitted")
        request.slot = slot
        if not self.grow(request, tokens):
            raise InvariantError(f"no pages for {request.request_id}, which was to be admitted")

    def grow(self, request: Request, tokens: int) -> bool:
        """Pages for `tokens` tokens; false, and nothing taken, when there are too few."""
        missing = -(-tokens // self.page_size) - len(request.pages)
        if missing <= 0:
            return True
        taken = self._take_pages(missing, request.owner)
        if taken is None:
            return False
        request.pages = (*request.pages, *taken)
        request.owned.update(taken)
        return True

    def snapshot_read(self, request: Request) -> None:
        """The forward that read the request's cached snapshot is over."""
        if request.resumes_from is not None:
            self.cache.unlock_snapshot(request.resumes_from)
            request.resumes_from = None

    def release(self, request: Request) -> None:
        """Give back all that `request` owns, fenced by the newest forward that may touch it."""
        self.snapshot_read(request)
        if request.node is not None:
            self.cache.unlock_pages(request.node)
            request.node = None
        if request.slot:
            self._slots.free(request.slot, request.owner, self._launched)
        self._pages.free_many(request.owned, request.owner, self._launched)
        request.owned.clear()
        request.slot = 0
        request.pages = ()
        request.computed = request.settled = 0
        request.branch = None

    # Tracking and donation -----------------------------------------------------------------

    def take_track_slot(self, wanted: bool) -> int | None:
        """A slot for a snapshot of the step that is being planned; never waited for.

        Only a snapshot that is `wanted` may push an older one out of the cache.
        """
        if not wanted and not self._slots.available:
            return None
        slot = self._take_slot(Owner.TRACK)
        if slot is None:
            self._counters.snapshots_skipped += wanted
            return None
        self._counters.snapshots_written += 1
        return slot

    def drop(self, tracked: Sequence[Tracked]) -> None:
        """Snapshots that nobody wants any more: their request is gone, or their step failed."""
        self._slots.free_many((t.slot for t in tracked), Owner.TRACK, self._launched)

    def donate(self, request: Request, tracked: Sequence[Tracked]) -> None:
        """The cache takes over snapshots, and the pages below the deepest."""
        if not self._caching or request.node is None:
            self.drop(tracked)
            return
        for snapshot in tracked:
            self._slots.move(snapshot.slot, Owner.TRACK, Owner.CACHE)
        spare = self._insert(
            request,
            max(t.depth for t in tracked),
            [(t.depth, t.slot) for t in tracked],
            {t.depth for t in tracked if t.hopeful},
        )
        self._slots.free_many(spare, Owner.CACHE, self._launched)
        self._counters.snapshots_donated += len(tracked) - len(spare)

    def share_pages(self, request: Request) -> None:
        """The cache takes over the whole pages that are settled; without recurrent layers they
        can be resumed from, with them they show branch points and save transfers."""
        if self._caching and request.node is not None:
            self._insert(request, request.settled // self.page_size * self.page_size, [], ())

    def donate_live(self, request: Request) -> None:
        """no_buffer: the live state goes to the cache. For a request that is over, page size 1."""
        if not self._caching or request.node is None or request.settled != request.computed:
            return
        if request.settled and request.slot:
            self._slots.move(request.slot, request.owner, Owner.CACHE)
            kept = [(request.settled, request.slot)]
            for spare in self._insert(request, request.settled, kept, ()):
                self._slots.free(spare, Owner.CACHE, self._launched)
            request.slot = 0

    def _insert(
        self,
        request: Request,
        depth: int,
        snapshots: list[tuple[int, int]],
        hopeful: Collection[int],
    ) -> tuple[int, ...]:
        """Put the pages of the first `depth` tokens into the cache; returns the spare slots.

        Pages that the cache had already replace the request's own, but for a held request: a
        transfer may be reading those.
        """
        old = request.node
        whole = depth // self.page_size
        given = request.pages[:whole]
        done = self.cache.insert(request.key(depth), given, snapshots, hopeful)
        spare = set(done.spare_pages) & request.owned
        for page in request.owned.intersection(given) - spare:
            self._pages.move(page, request.owner, Owner.CACHE)
            request.owned.discard(page)
        if not request.spec.hold:
            self._pages.free_many(spare, Owner.LIVE, self._launched)
            request.owned -= spare
            request.pages = (*done.pages, *request.pages[whole:])
        self.cache.lock_pages(done.node)
        if old is not None:
            self.cache.unlock_pages(old)
        request.node = done.node
        return done.spare_slots

    def flush(self) -> None:
        """Empty the cache, but for what requests are using."""
        self.cache.flush()

    # Hand-off ------------------------------------------------------------------------------

    def reserve(
        self, request_id: str, tokens: int, headroom: int, key: bytes = b""
    ) -> Reservation | None:
        """A slot and pages for a peer's writes, if `headroom` pages stay free beside them.

        key: those tokens, as far as they are known; pages that hold their KV already are the
        cache's, and stay locked until the reservation is over. A channel is outside the
        forwards' order, so only ids that no forward may touch will do for the others.
        """
        node, cached = self.cache.hold_kv(key[: tokens * TOKEN_BYTES] if self._caching else b"")
        needed = self.pages_for(tokens) - len(cached)
        taken = self._take_for_ticket(request_id, needed, headroom)
        if taken is None:
            self.cache.unlock_pages(node)
            return None
        slot, own = taken
        return Reservation(
            request_id, slot, (*cached, *own), tokens, len(cached) * self.page_size, node, own
        )

    def _take_for_ticket(
        self, request_id: str, needed: int, headroom: int
    ) -> tuple[int, tuple[int, ...]] | None:
        """A slot and `needed` pages; None, and nothing taken, when there is no room.

        What the cache lets go may be of use only after the forward in flight. Tickets ask again
        and again until then, and must not cost the cache more each time.
        """
        slots, pages = self._slots, self._pages
        promised = sum(count for _, count in self._promised.values())
        if request_id in self._promised or self.free_pages - promised - needed < headroom:
            return None
        if slots.available <= len(self._promised):
            self.cache.evict_snapshots(1)
        self.cache.evict_pages(promised + needed - pages.available)
        if not slots.available_to_channels or pages.available_to_channels < needed:
            if self._launched > self._completed:
                self._promised[request_id] = (self._launched, needed)
            return None
        slot = slots.take(Owner.TICKET)
        taken = pages.take_many(needed, Owner.TICKET)
        if slot is None or taken is None:
            raise InvariantError("a pool gave fewer ids than it said were available")
        return slot, tuple(taken)

    def quarantine(self, reservation: Reservation) -> None:
        """Ticket to quarantine. The cache's pages stay locked with it."""
        self._slots.move(reservation.slot, Owner.TICKET, Owner.QUARANTINE)
        for page in reservation.owned:
            self._pages.move(page, Owner.TICKET, Owner.QUARANTINE)

    def abandon(self, reservation: Reservation, owner: Owner) -> None:
        """The peer is proved quiet: its ids are free at once. owner: ticket or quarantine."""
        self._slots.free(reservation.slot, owner)
        self._pages.free_many(reservation.owned, owner)
        if reservation.node is not None:
            self.cache.unlock_pages(reservation.node)

    def adopt(self, request: Request, reservation: Reservation) -> None:
        """Ticket to live: `request` owns what was reserved, with the state already in it."""
        self._slots.move(reservation.slot, Owner.TICKET, Owner.LIVE)
        for page in reservation.owned:
            self._pages.move(page, Owner.TICKET, Owner.LIVE)
        request.slot = reservation.slot
        request.pages = reservation.pages
        request.owned = set(reservation.owned)
        request.computed = request.settled = reservation.tokens
        request.admissions += 1
        request.node = reservation.node
        self._counters.adopted_tokens += reservation.tokens
        self._counters.hit_tokens_transfer += reservation.kv_from

    def keep(self, reservation: Reservation, key: bytes) -> None:
        """Ticket to cache: a prefix whose pages and state a peer has written."""
        kept = [(reservation.tokens, reservation.slot)] if self.stateful else []
        done = self.cache.insert(key, reservation.pages, kept)
        spare = set(done.spare_pages)
        for page in reservation.owned:
            if page in spare:
                self._pages.free(page, Owner.TICKET)
            else:
                self._pages.move(page, Owner.TICKET, Owner.CACHE)
        if kept and not done.spare_slots:
            self._slots.move(reservation.slot, Owner.TICKET, Owner.CACHE)
        else:
            self._slots.free(reservation.slot, Owner.TICKET)
        if reservation.node is not None:
            self.cache.unlock_pages(reservation.node)

    def kept_tokens(self, request: Request) -> int:
        """How much of what `request` leaves to the cache can be resumed from."""
        node = request.node
        while node is not None and self.stateful and node.snapshot is None:
            node = node.parent
        return node.depth if node is not None else 0
