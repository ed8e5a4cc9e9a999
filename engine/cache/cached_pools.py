"""The pools of state slots and pages, and the prefix cache that uses what nobody else needs."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from baton.core.cache_salt import SHARED
from baton.core.errors import InvariantError
from baton.engine.cache.eviction_causes import EvictionCauses
from baton.engine.cache.prefix_cache import Inserted, PrefixCache
from baton.engine.cache.prefix_node import Node, Snapshot
from baton.engine.layout.owners import Owner
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.request_tables import RequestTables
from baton.engine.memory.state_pool import StatePool
from baton.engine.memory.table_changes import History, TableChanges
from baton.engine.settings.counters import Counters


class FileCounts(NamedTuple):
    """The files that hold prefixes, whosever they are, and what moves between them and memory."""

    files: int
    nbytes: int
    budget: int  # bytes
    writing: int  # prefixes that are written, or wait for it
    reading: int  # prefixes that are read


class Backup(Protocol):
    """Another memory that copies what the cache takes over, and reads it under a lock meanwhile."""

    def kept(self, node: Node, *, last: bool) -> None:
        """Note that the cache has the prefix that ends at `node` now, and can resume from it.
        last: it is the deepest of those that came with it."""
        ...

    def finished(self, node: Node) -> None:
        """Note that a request has ended, and could be resumed from `node`."""
        ...

    def hit(self, node: Node) -> None:
        """Note that a request resumes from `node`."""
        ...

    def recallable(self) -> tuple[int, int]:
        """Return how many slots and pages of the cache nobody else has locked."""
        ...

    def recall(self) -> None:
        """Unlock what is being read."""
        ...

    def flush(self, salts: bytes = b"") -> bool:
        """Forget all that nobody uses, of the salts that begin so; return true if nothing of them
        is left."""
        ...

    def counts(self) -> tuple[dict[Owner, int], dict[Owner, int]]:
        """Return how many of its slots and pages each owner has."""
        ...

    def copies(self) -> tuple[int, int]:
        """Return how many prefixes are being copied into it or wait for that, and how many are on
        their way back."""
        ...

    def file_counts(self) -> FileCounts | None:
        """Return what there is of files; None where it has none."""
        ...

    def audit(self) -> list[str]:
        """Describe every fault in the ownership of its memory. [] when all is well."""
        ...


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
        self.backup: Backup | None = None
        self.counters = counters
        self.slot_bytes = states.layout.slot_bytes
        self.page_bytes = pages.layout.page_bytes
        held = self.slots.size * self.slot_bytes + self.pages.size * self.page_bytes
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
        lent = self.backup.recallable()[0] if self.backup is not None else 0
        return self.slots.available + self.cache.evictable_snapshots + lent

    @property
    def free_pages(self) -> int:
        """Pages that a forward could have now, those that the cache would evict included."""
        lent = self.backup.recallable()[1] if self.backup is not None else 0
        return self.pages.available + self.cache.evictable_pages + lent

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
        if count > self.free_pages:
            return None
        short = count - self.pages.available
        if short > 0:
            self.evict_for_pages(short)
        return self.pages.take_many(count, owner)

    def evict_for_slots(self, count: int) -> None:
        """Evict `count` snapshots, if as many are evictable."""
        if self.backup is not None and count > self.cache.evictable_snapshots:
            self.backup.recall()
        nbytes = self._evicted_bytes(self.cache.evict_snapshots, count)
        self.counters.slot_shortage_bytes += nbytes
        self.causes.add(slots=nbytes)

    def evict_for_pages(self, count: int) -> None:
        """Evict at least `count` pages, if as many are evictable."""
        if self.backup is not None and count > self.cache.evictable_pages:
            self.backup.recall()
        nbytes = self._evicted_bytes(self.cache.evict_pages, count)
        self.counters.page_shortage_bytes += nbytes
        self.causes.add(pages=nbytes)

    def keep(
        self,
        key: bytes,
        pages: Sequence[int],
        snapshots: Sequence[Snapshot] = (),
        below: Node | None = None,
        salt: bytes = SHARED,
    ) -> Inserted:
        """Give the cache a run, see `PrefixCache.insert`, and tell the backup what it can resume
        from, the deepest first."""
        done = self.cache.insert(key, pages, snapshots, below, salt)
        if self.backup is not None:
            kept = [] if self.stateful else [done.node]
            wanted = {each.depth for each in snapshots if not each.opportunistic}
            node: Node | None = done.node
            while wanted and node is not None:
                if node.depth in wanted:
                    wanted.remove(node.depth)
                    kept.append(node)
                node = node.parent
            for each in kept:
                self.backup.kept(each, last=each is kept[0])
        return done

    def flush(self, salts: bytes = b"") -> bool:
        """Empty the cache and its backup, but for what is in use; return true if nothing was.

        salts: the beginning of those of which alone all is removed; b"": of all.
        """
        empty = self.backup is None or self.backup.flush(salts)
        self.cache.flush(salts)
        return empty and not self.cache.tree.holds(salts)

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
        counters = self.counters
        slots, pages = counters.snapshots_evicted, counters.pages_evicted
        evict(count)
        return (
            (counters.snapshots_evicted - slots) * self.slot_bytes
            + (counters.pages_evicted - pages) * self.page_bytes
        )  # fmt: skip

    def _evicted(self, pages: list[int], slots: list[int]) -> None:
        """Free what the cache evicts. A forward in flight may still read it."""
        self.give_back_pages(pages, Owner.CACHE)
        self.give_back_slots(slots, Owner.CACHE)
        self.counters.pages_evicted += len(pages)
        self.counters.snapshots_evicted += len(slots)
