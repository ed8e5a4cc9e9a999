"""The pools of state slots and pages, and the prefix cache that uses what nobody else needs."""

from collections.abc import Callable, Iterable, Sequence

from baton.core.errors import InvariantError
from baton.engine.cache.eviction_causes import EvictionCauses
from baton.engine.cache.prefix_cache import PrefixCache
from baton.engine.layout.owners import Owner
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.request_tables import RequestTables
from baton.engine.memory.state_pool import StatePool
from baton.engine.memory.table_changes import History, TableChanges
from baton.engine.settings.counters import Counters


class CachedPools:
    """Free lists behind a cache that gives way: whoever takes an id evicts from the cache first.

    Only ids move here; the memory behind them is touched by forwards alone. An id that is given
    back is fenced by the newest forward that may still touch it (see `IdPool`).
    """

    def __init__(
        self,
        states: StatePool,
        pages: PagePool,
        tables: RequestTables,
        caching: bool,
        counters: Counters,
    ) -> None:
        """caching: requests leave their pages and states to the cache."""
        self.slots = states.ids
        self.pages = pages.ids
        self.tables = tables
        self.rows = tables.ids
        self.table_changes = TableChanges(tables.pages.shape[1])
        self.page_size = pages.layout.page_size
        self.stateful = bool(states.layout.layers)
        self.caching = caching
        self.launched = 0  # the newest forward that is planned
        self.completed = 0  # the newest forward that has finished on the device
        self.cache = PrefixCache(self.page_size, self.stateful, self._evicted)
        self._counters = counters
        self._slot_bytes = states.layout.slot_bytes
        self._page_bytes = pages.layout.page_bytes
        held = self.slots.size * self._slot_bytes + self.pages.size * self._page_bytes
        self.causes = EvictionCauses(window_bytes=held)

    def launch(self, sequence: int) -> None:
        """Note that forward `sequence` is planned: it may touch ids that are freed from now on."""
        self.launched = sequence

    def complete(self, sequence: int) -> None:
        """Note that forward `sequence` has finished on the device, and lift its fences."""
        self.completed = sequence
        self.slots.complete(sequence)
        self.pages.complete(sequence)

    @property
    def free_slots(self) -> int:
        """Slots that a forward could have now, those that the cache would evict included."""
        return self.slots.available + self.cache.evictable_snapshots

    @property
    def free_pages(self) -> int:
        """Pages that a forward could have now, those that the cache would evict included."""
        return self.pages.available + self.cache.evictable_pages

    @property
    def total_pages(self) -> int:
        """Pages of the pool, without the padding page."""
        return self.pages.size - 1

    def pages_for(self, tokens: int) -> int:
        """Return the number of pages that hold `tokens` tokens."""
        return -(-tokens // self.page_size)

    def take_slot(self, owner: Owner) -> int | None:
        """Take a slot, evicting a snapshot if none is free. None when all are in use."""
        if not self.slots.available:
            self.evict_for_slots(1)
        return self.slots.take(owner)

    def take_pages(self, count: int, owner: Owner) -> list[int] | None:
        """Take `count` pages, evicting from the cache as needed. None, and nothing taken, when
        there are too few."""
        short = count - self.pages.available
        if short > self.cache.evictable_pages:
            return None
        if short > 0:
            self.evict_for_pages(short)
        return self.pages.take_many(count, owner)

    def evict_for_slots(self, count: int) -> None:
        """Evict `count` snapshots, if as many are evictable."""
        nbytes = self._evicted_bytes(self.cache.evict_snapshots, count)
        self._counters.slot_shortage_bytes += nbytes
        self.causes.add(slots=nbytes)

    def evict_for_pages(self, count: int) -> None:
        """Evict at least `count` pages, if as many are evictable."""
        nbytes = self._evicted_bytes(self.cache.evict_pages, count)
        self._counters.page_shortage_bytes += nbytes
        self.causes.add(pages=nbytes)

    def take_row(self, pages: Sequence[int], history: History) -> int:
        """Take a row of the request tables for a request that has `pages` and `history`."""
        row = self.rows.take(Owner.LIVE)
        if row is None:
            raise InvariantError(f"all {self.rows.size - 1} rows of the request tables are taken")
        self.table_changes.begin(row, pages, history)
        return row

    def give_back_row(self, row: int) -> None:
        """Free a row. A step in flight may read it still: its next owner's entries come later."""
        self.table_changes.forget(row)
        self.rows.free(row, Owner.LIVE)

    def give_back_slots(self, slots: Iterable[int], owner: Owner) -> None:
        """Free slots that a planned forward may still touch."""
        self.slots.free_many(slots, owner, self.launched)

    def give_back_pages(self, pages: Iterable[int], owner: Owner) -> None:
        """Free pages that a planned forward may still touch."""
        self.pages.free_many(pages, owner, self.launched)

    def _evicted_bytes(self, evict: Callable[[int], int], count: int) -> int:
        """Evict, and return the bytes of all slots and pages that went."""
        counters = self._counters
        slots, pages = counters.snapshots_evicted, counters.pages_evicted
        evict(count)
        return (
            (counters.snapshots_evicted - slots) * self._slot_bytes
            + (counters.pages_evicted - pages) * self._page_bytes
        )  # fmt: skip

    def _evicted(self, pages: list[int], slots: list[int]) -> None:
        """Free what the cache evicts. A forward in flight may still read it."""
        self.give_back_pages(pages, Owner.CACHE)
        self.give_back_slots(slots, Owner.CACHE)
        self._counters.pages_evicted += len(pages)
        self._counters.snapshots_evicted += len(slots)
