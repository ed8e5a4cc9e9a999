"""The workers that hold the recurrent state after a prefix, as they report it."""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from baton.core.cache_salt import SHARED
from baton.proto.worker_pb2 import CacheReport
from baton.router.expected_states import ExpectedStates
from baton.router.worker_table import Change, Worker, WorkerTable, id_order
from baton.text.prefix_digest import PrefixDigest, PromptPrefixes

MOST_PREFIXES = 1 << 20
"""Prefixes of all workers together that a router remembers, in about 200 MB. Beyond, a worker's new
ones take the place of its oldest."""

_Start = tuple[str, int]  # a worker's id and incarnation


@dataclass
class _Cache:
    """The prefixes of one start of a worker."""

    depths: dict[int, int] = field(default_factory=dict)  # by digest; oldest first
    sequence: int | None = None  # of the last CacheReport; None: there was none


class StateIndex:
    """A map from token prefixes to the workers that hold their state.

    An entry belongs to one start of a worker: one that is started again has lost its cache.
    """

    def __init__(self, table: WorkerTable, most: int = MOST_PREFIXES) -> None:
        self.expected = ExpectedStates(table)
        self._table = table
        self._most = most
        self._caches: dict[_Start, _Cache] = {}
        # Few holders, and many of these: a tuple is a quarter of a set, and no work for the
        # collector.
        self._holders: dict[int, tuple[_Start, ...]] = {}  # by digest
        self._lengths: Counter[int] = Counter()  # entries of each length
        self._rising: list[int] | None = None  # the lengths, sorted; None: they have changed
        self._entries = 0
        table.subscribe(self._on_change)

    def __len__(self) -> int:
        """Return the number of entries, one a prefix and worker."""
        return self._entries

    def report(self, worker: Worker, report: CacheReport) -> bool:
        """Apply what a worker reports of its cache.

        Return False if the report follows one that did not come; then nothing is applied, and a
        whole one is needed.
        """
        start = _start(worker)
        if report.whole:
            self._drop(start)
        cache = self._caches.setdefault(start, _Cache())
        if not report.whole and report.after != cache.sequence:
            return False
        cache.sequence = report.sequence
        for digest in report.evicted:
            self._remove(start, cache, digest)
        for digest, depth in zip(report.made, report.depths, strict=True):
            self._put(start, cache, digest, depth)
        return True

    def add(self, worker: Worker, token_ids: Sequence[int], salt: bytes = SHARED) -> None:
        """Record that `worker` has cached the state after exactly these tokens, and their KV, under
        the cache salt `salt`, before it reports so itself."""
        start = _start(worker)
        registered = self._table.find(worker.worker_id)
        if registered is None or _start(registered) != start:
            return
        digest = PrefixDigest(salt).add(array("I", token_ids).tobytes())
        self._put(start, self._caches.setdefault(start, _Cache()), digest, len(token_ids))

    def find(self, prompt: PromptPrefixes) -> list[tuple[int, Worker]]:
        """Return (tokens, worker) of every worker that stays and holds the state of a prefix.

        tokens: the length of the longest such prefix that leaves a token to compute. The longest
        come first; equals are in the table's order.
        """
        found = [
            (tokens, worker)
            for start, tokens in self._deepest(prompt).items()
            if (worker := self._table.find(start[0])) is not None
            and not worker.leaving
            and _start(worker) == start
        ]
        return sorted(found, key=lambda each: (-each[0], id_order(each[1].worker_id)))

    def clear(self) -> None:
        """Forget all prefixes, after the caches have been emptied. What a worker reports next
        follows on from what it has reported."""
        for start, cache in self._caches.items():
            for digest in list(cache.depths):
                self._remove(start, cache, digest)

    def _deepest(self, prompt: PromptPrefixes) -> dict[_Start, int]:
        """Return the length of the longest prefix, shorter than the whole, that each worker has."""
        if self._rising is None:
            self._rising = sorted(self._lengths)
        lengths = self._rising[: bisect_left(self._rising, len(prompt))]
        found: dict[_Start, int] = {}
        holders = self._holders
        for length, digest in zip(lengths, prompt.digests(lengths), strict=True):
            if digest in holders:
                found |= dict.fromkeys(holders[digest], length)
        return found

    def _put(self, start: _Start, cache: _Cache, digest: int, depth: int) -> None:
        self._remove(start, cache, digest)
        if self._entries >= self._most and cache.depths:
            self._remove(start, cache, next(iter(cache.depths)))
        elif self._entries >= self._most:
            return
        cache.depths[digest] = depth
        self._holders[digest] = (*self._holders.get(digest, ()), start)
        if depth not in self._lengths:
            self._rising = None
        self._lengths[depth] += 1
        self._entries += 1

    def _remove(self, start: _Start, cache: _Cache, digest: int) -> None:
        """Remove an entry, if there is one."""
        depth = cache.depths.pop(digest, None)
        if depth is None:
            return
        holders = tuple(each for each in self._holders[digest] if each != start)
        if holders:
            self._holders[digest] = holders
        else:
            del self._holders[digest]
        self._lengths[depth] -= 1
        if not self._lengths[depth]:
            del self._lengths[depth]
            self._rising = None
        self._entries -= 1

    def _drop(self, start: _Start) -> None:
        """Forget one start of a worker."""
        cache = self._caches.get(start)
        if cache is not None:
            for digest in list(cache.depths):
                self._remove(start, cache, digest)
            del self._caches[start]

    def _on_change(self, change: Change) -> None:
        if change.after is None and change.before is not None:
            self._drop(_start(change.before))


def _start(worker: Worker) -> _Start:
    return worker.worker_id, worker.identity.incarnation
