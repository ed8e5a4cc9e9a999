"""The workers that hold the recurrent state after a prefix, as they report it."""

import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from baton.core.cache_salt import SHARED
from baton.proto.worker_pb2 import CacheReport
from baton.router.cluster_view.eviction_log import EvictionLog, Loss
from baton.router.cluster_view.expected_states import ExpectedStates
from baton.router.cluster_view.prefix_lengths import PrefixLengths
from baton.router.cluster_view.worker_table import Change, Worker, WorkerTable
from baton.text.prefix_digest import PrefixDigest, PromptPrefixes

MOST_PREFIXES = 1 << 20
"""Prefixes of all workers together that a router remembers, in about 200 MB. Beyond, a worker's new
ones take the place of its oldest."""


@dataclass(slots=True)
class _Cache:
    """The prefixes of one start of a worker."""

    worker: Worker  # as it was when it came
    worker_id: str
    slot: int  # its place in `StateIndex._slots`
    name: bytes  # the slot as `StateIndex._holders` has it
    depths: dict[int, int] = field(default_factory=dict)  # by digest; oldest first
    sequence: int | None = None  # of the last CacheReport; None: there was none
    leaving: bool = False


class StateIndex:
    """A map from token prefixes to the workers that hold their state.

    An entry belongs to one start of a worker: one that is started again has lost its cache.
    """

    def __init__(
        self,
        table: WorkerTable,
        most: int = MOST_PREFIXES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lengths = PrefixLengths()  # of what is here, and of what is expected
        self.expected = ExpectedStates(table, self._lengths)
        self.evictions = EvictionLog(clock)
        """The states that workers have lost."""
        self._table = table
        self._most = most
        self._caches: dict[str, _Cache] = {}  # of workers in the table
        self._slots: list[_Cache | None] = []  # the same; None: free
        # By digest, slots of 32 bits each. The collector passes over a dict of ints and bytes,
        # which takes it no time however many entries there are.
        self._holders: dict[int, bytes] = {}
        self._entries = 0
        self._flushes = 0  # under way
        table.subscribe(self._on_change)

    def __len__(self) -> int:
        """Return the number of entries, one a prefix and worker."""
        return self._entries

    def report(self, worker: Worker, report: CacheReport) -> bool:
        """Apply what a worker of the table reports of its cache.

        Return False if the report follows one that did not come; then nothing is applied, and a
        whole one is needed.
        """
        before = self._drop(worker.worker_id) if report.whole else {}
        cache = self._cache_of(worker)
        if cache is None or (not report.whole and report.after != cache.sequence):
            return False
        cache.sequence = report.sequence
        # Slices: protobuf makes a list at once, where an iterator costs more than the whole report.
        remove = self._remove
        lost = {digest: n for digest in report.evicted[:] if (n := remove(cache, digest))}
        for digest, depth in zip(report.made[:], report.depths[:], strict=True):
            self._put(cache, digest, depth)
        if before:
            lost = {digest: before[digest] for digest in before if digest not in cache.depths}
        if lost:
            how = Loss.FLUSHED if self._flushes else Loss.EVICTED
            self.evictions.add(cache.worker_id, how, lost)
        return True

    def add(self, worker: Worker, token_ids: Sequence[int], salt: bytes = SHARED) -> None:
        """Record that `worker` has cached the state after exactly these tokens, and their KV, under
        the cache salt `salt`, before it reports so itself."""
        cache = self._cache_of(worker)
        if cache is not None:
            digest = PrefixDigest(salt).add(array("I", token_ids).tobytes())
            self._put(cache, digest, len(token_ids))

    def find(self, prompt: PromptPrefixes) -> dict[str, int]:
        """Return the length of the longest prefix that leaves a token to compute, by the id of each
        worker that stays and holds the state after one.
        """
        size = len(prompt)
        holders, slots = self._holders, self._slots
        found: dict[int, int] = {}
        for length, digest in prompt.among(self._lengths.below(size), holders.keys()):
            if length < size:
                found |= dict.fromkeys(memoryview(holders[digest]).cast("I"), length)
        return {
            cache.worker_id: length
            for slot, length in found.items()
            if (cache := slots[slot]) is not None and not cache.leaving
        }

    @contextmanager
    def flushing(self) -> Iterator[None]:
        """Forget all prefixes at the end: some caches may be empty even after a failure.

        A worker may report what it has flushed before all others have.
        """
        self._flushes += 1
        try:
            yield
        finally:
            self._flushes -= 1
            self.clear()

    def clear(self) -> None:
        """Forget all prefixes, after the caches have been emptied. What a worker reports next
        follows on from what it has reported."""
        for cache in self._caches.values():
            self.evictions.add(cache.worker_id, Loss.FLUSHED, cache.depths)
            for digest in list(cache.depths):
                self._remove(cache, digest)

    def _cache_of(self, worker: Worker) -> _Cache | None:
        """Return the cache of a start of a worker; None if the table has it no more."""
        cache = self._caches.get(worker.worker_id)
        if cache is None:
            now = self._table.find(worker.worker_id)
            if now is None:
                return None
            slot = self._free_slot()
            cache = _Cache(
                now, now.worker_id, slot, array("I", [slot]).tobytes(), leaving=now.leaving
            )
            self._caches[worker.worker_id] = self._slots[slot] = cache
        had, now_has = cache.worker.identity, worker.identity
        same = had is now_has or had.incarnation == now_has.incarnation
        return cache if same else None

    def _free_slot(self) -> int:
        if None not in self._slots:
            self._slots.append(None)
        return self._slots.index(None)

    def _put(self, cache: _Cache, digest: int, depth: int) -> None:
        depths, holders = cache.depths, self._holders
        if digest in depths:
            self._remove(cache, digest)
        if self._entries >= self._most:
            if not depths:
                return
            self._remove(cache, next(iter(depths)))
        depths[digest] = depth
        others = holders.get(digest)
        holders[digest] = cache.name if others is None else others + cache.name
        self._lengths.add(depth)
        self._entries += 1

    def _remove(self, cache: _Cache, digest: int) -> int:
        """Remove an entry and return its length; 0: there is none."""
        depth = cache.depths.pop(digest, 0)
        if not depth:
            return 0
        holders = self._holders.pop(digest)
        if holders is not cache.name and holders != cache.name:
            others = array("I", holders)
            others.remove(cache.slot)
            self._holders[digest] = others.tobytes()
        self._lengths.remove(depth)
        self._entries -= 1
        return depth

    def _drop(self, worker_id: str) -> dict[int, int]:
        """Forget a worker and return the lengths that it had, by digest."""
        cache = self._caches.pop(worker_id, None)
        if cache is None:
            return {}
        had = dict(cache.depths)
        for digest in had:
            self._remove(cache, digest)
        self._slots[cache.slot] = None
        return had

    def _on_change(self, change: Change) -> None:
        if change.after is None and change.before is not None:
            had = self._drop(change.before.worker_id)
            self.evictions.add(change.before.worker_id, Loss.WORKER_GONE, had)
        elif change.after is not None and change.after.worker_id in self._caches:
            self._caches[change.after.worker_id].leaving = change.after.leaving
