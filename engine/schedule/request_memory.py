"""The slot and the pages that a request owns while it runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest

from baton.core.drafts import DraftSource
from baton.core.errors import InvariantError
from baton.engine.cache.cached_pools import CachedPools
from baton.engine.cache.prefix_cache import Match
from baton.engine.request.request import Request
from baton.engine.settings.counters import Counters, Depths

_PLACES = {source: place for place, source in enumerate(DraftSource)}


class RequestMemory:
    """Gives each running request one live slot and a run of pages, and takes them back.

    The first pages of a request may be the prefix cache's. Requests never wait for the cache: it
    is evicted first.
    """

    def __init__(self, pools: CachedPools, counters: Counters) -> None:
        self.pools = pools
        self._counters = counters

    @contextmanager
    def admission(self, requests: int) -> Iterator[None]:
        """Set slots aside for up to `requests` requests, for one pass over the waiting queue."""
        with self.pools.slots.group(requests):
            yield

    def resume(self, request: Request, limit: int, grid: int) -> Match:
        """Give `request`, which owns nothing, the longest cached prefix of at most `limit` tokens.

        Its pages and its snapshot stay locked until `release`, the snapshot at the latest until
        `snapshot_read`.
        """
        cache = self.pools.cache
        key, salt = request.key(0, request.target), request.spec.cache_salt
        match = cache.match(key, max(0, limit), salt)
        cache.lock(match.node)
        request.node = request.resumes_from = match.node
        request.state_slot = match.snapshot or 0
        request.pages = list(match.pages)
        request.lengths.computed = request.lengths.settled = match.depth
        request.branch = cache.branch_point(match, grid)
        return match

    def count_hit(self, request: Request, match: Match) -> None:
        """Count that `request` is admitted with the prefix that `resume` gave it."""
        counters = self._counters
        counters.prompt_tokens += request.target
        counters.state_hit_tokens += request.lengths.computed
        counters.kv_hit_tokens += match.kv_depth
        counters.branch_points += request.branch is not None
        promotion = request.promotion
        host, file = (0, 0) if promotion is None else promotion.spared(request.lengths.computed)
        counters.host_hit_tokens += host
        counters.file_hit_tokens += file
        if self.pools.backup is not None and match.depth:
            self.pools.backup.hit(match.node)
        if not request.admissions:
            request.cached_tokens, request.cached_kv = request.lengths.computed, match.kv_depth
            request.cached_host, request.cached_file = host, file
        request.admissions += 1

    def count_guess(self, seconds: float) -> None:
        """Count the host's time for a guess."""
        self._counters.draft_seconds += seconds

    def count_behind(self, rows: int = 1) -> None:
        """Count rows that wait for their requests' newest tokens."""
        self._counters.rows_behind += rows

    def count_drafts(
        self, request: Request, sources: tuple[DraftSource, ...], accepted: int
    ) -> None:
        """Count the drafts of a row, if it had any, by who guessed each, and those that were
        right, the first ones.
        """
        if not sources:
            return
        request.drafted.add(sources, accepted)
        counters = self._counters
        counters.draft_rows += 1
        counters.proposed_depths = _added(counters.proposed_depths, sources)
        counters.accepted_depths = _added(counters.accepted_depths, sources[:accepted])
        lengths = list(counters.accepted_length_tokens)
        lengths[accepted] += 1
        counters.accepted_length_tokens = tuple(lengths)

    def count_preemption(self) -> None:
        """Count that a running request had to give its memory back."""
        self._counters.preemptions += 1

    def admit(self, request: Request, tokens: int) -> None:
        """Take the live slot, a row of the tables and pages for `tokens` tokens.

        The caller has checked that they are free; raises InvariantError otherwise.
        """
        slot = self.pools.take_slot(request.owner)
        if slot is None:
            raise InvariantError(f"no free slot to admit request {request.request_id}")
        request.slot = slot
        request.state_slot = request.state_slot or slot
        request.table_row = self.pools.take_row(request.pages, request.history)
        if not self.grow(request, tokens):
            raise InvariantError(f"too few free pages to admit request {request.request_id}")

    def missing_pages(self, request: Request, tokens: int) -> int:
        """Return how many pages `request` lacks for `tokens` tokens."""
        return max(0, self.pools.pages_for(tokens) - len(request.pages))

    def grow(self, request: Request, tokens: int) -> bool:
        """Take pages until `request` has room for `tokens` tokens.

        Returns false, with nothing taken, when there are too few.
        """
        pools = self.pools
        missing = -(-tokens // pools.page_size) - len(request.pages)
        if missing <= 0:
            return True
        taken = pools.take_pages(missing, request.owner)
        if taken is None:
            return False
        pools.table_changes.note(request.table_row, len(request.pages), taken)
        request.pages += taken
        request.owned.update(taken)
        return True

    def resume_from(self, request: Request, written: int) -> None:
        """Lock the snapshot that `request` has just given to the cache, since the state that its
        next row reads lies there alone.

        written: the slot that the step wrote. The cache may have had another of the same tokens;
        then that one is read, unless the next row is planned already: what it reads is fenced.
        """
        node = request.node
        if node is None or node.snapshot is None:
            raise InvariantError(f"request {request.request_id} left the cache no snapshot")
        self.pools.cache.lock_snapshot(node)
        request.resumes_from = node
        if request.state_slot == written:
            request.state_slot = node.snapshot

    def snapshot_read(self, request: Request) -> None:
        """Unlock the snapshot that `request` resumes from: the forward that read it is over."""
        if request.resumes_from is not None:
            self.pools.cache.unlock_snapshot(request.resumes_from)
            request.resumes_from = None

    def release(self, request: Request) -> None:
        """Give back all that `request` owns, fenced by the newest forward that may touch it."""
        pools = self.pools
        if request.slot:
            request.promotion = None
        elif request.promotion is not None:  # it was not admitted after all
            request.promotion.crowded = True
        self.snapshot_read(request)
        if request.node is not None:
            pools.cache.unlock_pages(request.node)
            request.node = None
        if request.slot:
            pools.give_back_slots((request.slot,), request.owner)
        if request.table_row:
            pools.give_back_row(request.table_row)
            request.table_row = 0
        pools.give_back_pages(request.owned, request.owner)
        request.owned.clear()
        request.slot = request.state_slot = 0
        request.pages = []
        request.lengths.computed = request.lengths.settled = request.drafts_in_flight = 0
        request.branch = None


def _added(counts: Depths, sources: tuple[DraftSource, ...]) -> Depths:
    """Return the counts by source and position, with one more for each of `sources`."""
    found = list(counts)
    for source in set(sources):
        place = _PLACES[source]
        more = [each is source for each in sources]
        found[place] = tuple(
            count + here for count, here in zip_longest(counts[place], more, fillvalue=0)
        )
    return tuple(found)
