"""A memory of pages and slots behind a prefix cache, without bytes."""

from collections.abc import Callable, Sequence

from baton.bench.prefix.budget import CacheBudget, PrefixBytes
from baton.core.errors import InvariantError
from baton.engine.cache.prefix_cache import PrefixCache
from baton.engine.cache.prefix_node import Snapshot
from baton.engine.layout.owners import Owner
from baton.engine.layout.token_key import TOKEN_BYTES
from baton.engine.memory.id_pool import IdPool


class CacheMemory:
    """The cache, which evicts for whoever takes a page or a slot."""

    def __init__(self, page_size: int, budget: CacheBudget, sizes: PrefixBytes) -> None:
        self._sizes = sizes
        self.page_size = page_size
        self.pages = IdPool(budget.pages + 1, "page")
        self.slots = IdPool(budget.snapshots + 1, "slot")
        self.cache = PrefixCache(page_size, True, self._evicted)
        self.evicted_bytes = 0

    def take_pages(self, count: int) -> list[int]:
        """Take up to `count` pages, evicting where too few are free."""
        return self._take(self.pages, count, self.cache.evict_pages)

    def take_slots(self, count: int) -> list[int]:
        """Take up to `count` slots, evicting where too few are free."""
        return self._take(self.slots, count, self.cache.evict_snapshots)

    def keep(self, key: bytes, pages: Sequence[int], snapshots: Sequence[Snapshot]) -> None:
        """Give the cache what was taken, and free what it has already."""
        done = self.cache.insert(key, pages, snapshots)
        self.pages.free_many(done.spare_pages, Owner.CACHE)
        self.slots.free_many(done.spare_slots, Owner.CACHE)

    def copy(self, key: bytes) -> bool:
        """Take over the state after `key`, and the pages of it that are not here. False, and
        nothing is kept, where there is no room."""
        tokens = len(key) // TOKEN_BYTES
        node, known = self.cache.hold_kv(key)
        needed = tokens // self.page_size - len(known)
        room = needed <= self.pages.available + self.cache.evictable_pages
        if room and (slots := self.take_slots(1)):
            pages = (*known, *self.take_pages(needed))
            self.keep(key, pages, [Snapshot(tokens, slots[0])])
        self.cache.unlock_pages(node)
        return room and bool(slots)

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

    def _take(self, pool: IdPool, count: int, evict: Callable[[int], int]) -> list[int]:
        if pool.available < count:
            evict(count - pool.available)
        return pool.take_many(min(count, pool.available), Owner.CACHE) or []

    def _evicted(self, pages: list[int], slots: list[int]) -> None:
        self.pages.free_many(pages, Owner.CACHE)
        self.slots.free_many(slots, Owner.CACHE)
        page_bytes = self._sizes.kv * self.page_size
        self.evicted_bytes += len(pages) * page_bytes + len(slots) * self._sizes.state
