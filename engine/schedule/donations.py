"""The memory that requests leave to the prefix cache: snapshots, pages and live states."""

from collections.abc import Sequence

from baton.core.errors import InvariantError
from baton.engine.cache.cached_pools import CachedPools
from baton.engine.cache.prefix_node import Node, Snapshot
from baton.engine.layout.owners import Owner
from baton.engine.request.request import Request
from baton.engine.settings.counters import Counters


class Donations:
    """Moves ids from requests to the prefix cache. Takes slots for snapshots only where free."""

    def __init__(self, pools: CachedPools, counters: Counters) -> None:
        self.pools = pools
        self._counters = counters

    def take_track_slot(self, wanted: bool) -> int | None:
        """Take a slot for a snapshot of the step that is being planned, without waiting for one.

        Only a snapshot that is `wanted` may push an older one out of the cache.
        """
        if not wanted and not self.pools.slots.available:
            return None
        slot = self.pools.take_slot(Owner.TRACK)
        if slot is None:
            self._counters.snapshots_skipped += wanted
            return None
        self._counters.snapshots_written += 1
        return slot

    def drop(self, tracked: Sequence[Snapshot]) -> None:
        """Free the slots of snapshots whose request is gone, or whose step failed."""
        self.pools.give_back_slots((t.slot for t in tracked), Owner.TRACK)

    def donate(self, request: Request, tracked: Sequence[Snapshot]) -> None:
        """Give the cache the snapshots of a step, and the pages below the deepest of them."""
        pools = self.pools
        if not pools.caching or request.node is None:
            self.drop(tracked)
            return
        for snapshot in tracked:
            pools.slots.move(snapshot.slot, Owner.TRACK, Owner.CACHE)
        spare = self._insert(request, max(t.depth for t in tracked), tracked)
        pools.give_back_slots(spare, Owner.CACHE)
        self._counters.snapshots_donated += len(tracked) - len(spare)

    def share_pages(self, request: Request) -> None:
        """Give the cache the whole pages that are settled.

        Without recurrent layers they can be resumed from. With them they show branch points and
        save transfers.
        """
        if self.pools.caching and request.node is not None:
            page_size = self.pools.page_size
            self._insert(request, request.lengths.settled // page_size * page_size, ())

    def donate_live(self, request: Request) -> None:
        """Give the cache the live state of a request that is over (no_buffer, page size 1)."""
        pools = self.pools
        settled = request.lengths.settled
        if not pools.caching or request.node is None or settled != request.lengths.computed:
            return
        if settled and request.slot:
            pools.slots.move(request.slot, request.owner, Owner.CACHE)
            kept = [Snapshot(settled, request.slot)]
            spare = self._insert(request, settled, kept)
            pools.give_back_slots(spare, Owner.CACHE)
            request.slot = 0

    def kept_tokens(self, request: Request) -> int:
        """Return how many tokens of what `request` left to the cache can be resumed from."""
        node = self._resumable(request)
        return node.depth if node is not None else 0

    def finish(self, request: Request) -> int:
        """Tell the backup what a request that is over has left to the cache. Return how many tokens
        of that can be resumed from."""
        node = self._resumable(request)
        if node is None or not node.depth:
            return 0
        if self.pools.backup is not None:
            self.pools.backup.finished(node)
        return node.depth

    def _resumable(self, request: Request) -> Node | None:
        node = request.node
        while node is not None and self.pools.stateful and node.snapshot is None:
            node = node.parent
        return node

    def _insert(
        self, request: Request, depth: int, snapshots: Sequence[Snapshot]
    ) -> tuple[int, ...]:
        """Put the pages of the first `depth` tokens into the cache; return the spare slots.

        Pages that the cache had already replace the request's own, but for a held request: a
        transfer may be reading those.
        """
        pools, old = self.pools, request.node
        if old is None:
            raise InvariantError(f"request {request.request_id} has no place in the cache")
        known = old.depth // pools.page_size  # its first pages, which the cache has already
        given = request.pages[known : depth // pools.page_size]
        key = request.key(old.depth, depth)
        done = pools.keep(key, given, snapshots, below=old)
        spare = set(done.spare_pages) & request.owned
        for page in request.owned.intersection(given) - spare:
            pools.pages.move(page, request.owner, Owner.CACHE)
            request.owned.discard(page)
        if spare and not request.spec.hold:
            pools.give_back_pages(spare, Owner.LIVE)
            request.owned -= spare
            self._swap(request, known, done.pages)
        pools.cache.move_lock(old, done.node)
        request.node = done.node
        return done.spare_slots

    def _swap(self, request: Request, first: int, pages: Sequence[int]) -> None:
        """Replace the request's pages from entry `first` on by `pages`, here and on the device."""
        for entry, page in enumerate(pages, first):
            if request.pages[entry] != page:
                request.pages[entry] = page
                self.pools.table_changes.note(request.table_row, entry, (page,))
