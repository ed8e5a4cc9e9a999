"""Replay of a trace of prompts against the prefix cache alone, to count hits."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from baton.bench.prefix.budget import CacheBudget, PrefixBytes
from baton.core.errors import InvariantError
from baton.engine.cache.prefix_cache import PrefixCache
from baton.engine.cache.prefix_node import Snapshot
from baton.engine.cache.track_plan import Depths, prefill_depths
from baton.engine.layout.owners import Owner
from baton.engine.layout.token_key import TOKEN_BYTES
from baton.engine.memory.id_pool import IdPool


@dataclass
class Replayed:
    """Sums over the requests.

    tokens, hit: of prompts. branches: tracked branch points. for_slots, for_pages: bytes that were
    evicted because one pool ran short.
    """

    requests: int = 0
    tokens: int = 0
    hit: int = 0
    branches: int = 0
    for_slots: int = 0
    for_pages: int = 0

    @property
    def hit_rate(self) -> float:
        return self.hit / self.tokens if self.tokens else 0.0

    @property
    def short_of_slots(self) -> float:
        """The share of evicted bytes that went because slots ran short; 0 if nothing went."""
        return self.for_slots / ((self.for_slots + self.for_pages) or 1)


class Replay:
    """A replay on one worker's cache; each prompt is inserted when it is done.

    snapshots: the most that one prompt leaves. grid: the depths at which they lie, in tokens.
    """

    def __init__(
        self, page_size: int, grid: int, budget: CacheBudget, snapshots: int, sizes: PrefixBytes
    ) -> None:
        self._sizes = sizes
        self._evicted_bytes = 0
        self._page_size = page_size
        self._grid = grid
        self._snapshots = snapshots
        self.pages = IdPool(budget.pages + 1, "page")
        self.slots = IdPool(budget.snapshots + 1, "slot")
        self.cache = PrefixCache(page_size, True, self._evicted)

    def _evicted(self, pages: list[int], slots: list[int]) -> None:
        self.pages.free_many(pages, Owner.CACHE)
        self.slots.free_many(slots, Owner.CACHE)
        page_bytes = self._sizes.kv * self._page_size
        self._evicted_bytes += len(pages) * page_bytes + len(slots) * self._sizes.state

    def run(self, keys: Iterable[bytes]) -> Replayed:
        sums = Replayed()
        for key in keys:
            self._request(key, sums)
        return sums

    def compute(self, key: bytes, junctions: Sequence[int] = ()) -> Replayed:
        """Play one prompt, of which other prompts are known to go another way at `junctions`."""
        sums = Replayed()
        self._request(key, sums, junctions)
        return sums

    def _request(self, key: bytes, sums: Replayed, junctions: Sequence[int] = ()) -> None:
        length = len(key) // TOKEN_BYTES
        match = self.cache.match(key, length - 1)
        branch = self.cache.branch_point(match, self._grid)
        branches = junctions if branch is None else (*junctions, branch)
        sums.requests += 1
        sums.tokens += length
        sums.hit += match.depth
        depths = prefill_depths(
            match.depth, length - match.depth, self._grid, branches, self._snapshots
        )
        sums.branches += branch in depths.wanted
        self.cache.lock(match.node)
        self._insert(key, match.pages, depths, sums)
        self.cache.unlock(match.node)

    def _insert(self, key: bytes, have: tuple[int, ...], depths: Depths, sums: Replayed) -> None:
        """Insert the prompt's whole pages and its snapshots as far as there is room."""
        whole = len(key) // TOKEN_BYTES // self._page_size
        before = self._evicted_bytes
        fresh = self._take(self.pages, whole - len(have), self.cache.evict_pages)
        sums.for_pages += self._evicted_bytes - before
        pages = (*have, *fresh)
        end = len(pages) * self._page_size
        wanted = [depth for depth in depths.wanted if depth <= end]
        opportunistic = [depth for depth in depths.opportunistic if depth <= end]
        before = self._evicted_bytes
        slots = self._take(self.slots, len(wanted), self.cache.evict_snapshots)
        sums.for_slots += self._evicted_bytes - before
        slots += (
            self.slots.take_many(min(len(opportunistic), self.slots.available), Owner.CACHE) or []
        )
        order = [(depth, False) for depth in reversed(wanted)]
        order += [(depth, True) for depth in opportunistic]
        kept = [
            Snapshot(depth, slot, late) for (depth, late), slot in zip(order, slots, strict=False)
        ]
        done = self.cache.insert(key[: end * TOKEN_BYTES], pages, kept)
        self.pages.free_many(done.spare_pages, Owner.CACHE)
        self.slots.free_many(done.spare_slots, Owner.CACHE)

    def _take(self, pool: IdPool, count: int, evict: Callable[[int], int]) -> list[int]:
        """Take up to `count` ids, evicting if the pool has too few."""
        if pool.available < count:
            evict(count - pool.available)
        return pool.take_many(min(count, pool.available), Owner.CACHE) or []

    def check(self) -> None:
        """Check that every page and slot is free or in the cache."""
        self.pages.check()
        self.slots.check()
        self.cache.check()
        pages, slots = self.cache.tree.owned()
        held = (self.pages.counts()[Owner.CACHE], self.slots.counts()[Owner.CACHE])
        if held != (len(pages), len(slots)):
            raise InvariantError(
                f"the cache holds {len(pages)} pages and {len(slots)} snapshots, "
                f"the pools say {held}"
            )
