"""The pools of the host's tier: snapshots and pages, in the layouts of the device's pools.

Of several ranks each has a part of every block, as on its device.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from baton.engine.cache.cached_pools import CachedPools
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.rank_storage import RankStorage
from baton.engine.memory.request_tables import RequestTables, TableSizes
from baton.engine.memory.state_pool import StatePool
from baton.engine.settings.counters import Counters
from baton.engine.sizing.host_sizes import HostSizes
from baton.kernels import huge_pages

_CPU = torch.device("cpu")


class HostPools(NamedTuple):
    """The host's pools behind a prefix cache, and their storages: [ranks x blocks, bytes of a
    rank's part] uint8, rank by rank."""

    cached: CachedPools
    states: Tensor
    pages: Tensor
    ranks: int

    def of_rank(self, rank: int) -> RankStorage:
        """Return the storages of a rank's parts: [blocks, bytes] uint8."""
        slots, pages = self.cached.slots.size, self.cached.pages.size
        states, kv = self.states[rank * slots :], self.pages[rank * pages :]
        return RankStorage(states[:slots], kv[:pages])


def host_pools(sizes: HostSizes) -> HostPools:
    """Allocate them, pinned beside a GPU. The sizes have been checked."""
    slots, pages = sizes.plan.slot_layout, sizes.plan.page_layout
    pinned = sizes.plan.config.on_gpu
    ranks = sizes.plan.config.tp
    states = _zeros(ranks * sizes.slots, slots.slot_bytes, pinned)
    kv = _zeros(ranks * sizes.pages, pages.page_bytes, pinned)
    cached = CachedPools(
        StatePool(slots, sizes.slots, _CPU, states[: sizes.slots]),
        PagePool(pages, sizes.pages, _CPU, kv[: sizes.pages]),
        RequestTables(TableSizes(1, 1, 1, 1), _CPU),  # no request runs here
        caching=True,
        counters=Counters(),
    )
    cached.slot_bytes, cached.page_bytes = sizes.slot_bytes, sizes.page_bytes
    return HostPools(cached, states, kv, ranks)


def _zeros(blocks: int, nbytes: int, pinned: bool) -> Tensor:
    zeros = huge_pages.zeros((blocks, nbytes), torch.uint8, _CPU)
    if pinned and nbytes:
        # torch's own pinned memory is rounded up to a power of two.
        pin = torch.cuda.cudart().cudaHostRegister  # type: ignore[no-untyped-call]
        torch.cuda.check_error(pin(zeros.data_ptr(), zeros.nbytes, 0))
    return zeros
