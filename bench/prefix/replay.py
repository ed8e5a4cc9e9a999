"""Replay of a trace of prompts against the prefix cache alone, to count hits."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from baton.bench.prefix.budget import CacheBudget, PrefixBytes
from baton.bench.prefix.cache_memory import CacheMemory
from baton.bench.prefix.tiers import TierBudget, Tiers
from baton.engine.cache.prefix_node import Snapshot
from baton.engine.cache.track_plan import Depths, prefill_depths
from baton.engine.layout.token_key import TOKEN_BYTES


@dataclass
class Replayed:
    """Sums over the requests.

    tokens, hit: of prompts. host, file: of those hit, that came from the host's memory, and from
    files. branches: tracked branch points. for_slots, for_pages: bytes that were evicted because
    one pool ran short.
    """

    requests: int = 0
    tokens: int = 0
    hit: int = 0
    host: int = 0
    file: int = 0
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
        self,
        page_size: int,
        grid: int,
        budget: CacheBudget,
        snapshots: int,
        sizes: PrefixBytes,
        behind: TierBudget | None = None,
    ) -> None:
        """behind: the memories that take what this one evicts; None: there are none."""
        self._grid = grid
        self._snapshots = snapshots
        self._memory = memory = CacheMemory(page_size, budget, sizes)
        self.cache = memory.cache
        self._tiers = Tiers.behind(memory, behind, sizes) if behind is not None else None

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
        promotion = self._tiers.promote(key, length - 1) if self._tiers is not None else None
        match = self.cache.match(key, length - 1)
        branch = self.cache.branch_point(match, self._grid)
        branches = junctions if branch is None else (*junctions, branch)
        sums.requests += 1
        sums.tokens += length
        sums.hit += match.depth
        if self._tiers is not None and promotion is not None:
            host, file = promotion.spared(match.depth)
            sums.host += host
            sums.file += file
            if match.depth:
                self._tiers.hit(match.node)
        depths = prefill_depths(
            match.depth, length - match.depth, self._grid, branches, self._snapshots
        )
        sums.branches += branch in depths.wanted
        self.cache.lock(match.node)
        self._insert(key, match.pages, depths, sums)
        self.cache.unlock(match.node)

    def _insert(self, key: bytes, have: tuple[int, ...], depths: Depths, sums: Replayed) -> None:
        """Insert the prompt's whole pages and its snapshots as far as there is room."""
        memory = self._memory
        whole = len(key) // TOKEN_BYTES // memory.page_size
        before = memory.evicted_bytes
        pages = (*have, *memory.take_pages(whole - len(have)))
        sums.for_pages += memory.evicted_bytes - before
        end = len(pages) * memory.page_size
        wanted = [depth for depth in depths.wanted if depth <= end]
        opportunistic = [depth for depth in depths.opportunistic if depth <= end]
        before = memory.evicted_bytes
        slots = memory.take_slots(len(wanted))
        sums.for_slots += memory.evicted_bytes - before
        slots += memory.take_slots(min(len(opportunistic), memory.slots.available))
        order = [(depth, False) for depth in reversed(wanted)]
        order += [(depth, True) for depth in opportunistic]
        kept = [
            Snapshot(depth, slot, late) for (depth, late), slot in zip(order, slots, strict=False)
        ]
        memory.keep(key[: end * TOKEN_BYTES], pages, kept)
        if self._tiers is not None:
            self._tiers.kept(key, sorted(each.depth for each in kept if not each.opportunistic))

    def check(self) -> None:
        """Check that every page and slot is free or in a cache."""
        self._memory.check()
        if self._tiers is not None:
            self._tiers.check()
