"""The pools of the host's tier: snapshots and pages, in the layouts of the device's pools."""

from typing import NamedTuple

import torch
from torch import Tensor

from baton.engine.cache.cached_pools import CachedPools
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.request_tables import RequestTables, TableSizes
from baton.engine.memory.state_pool import StatePool
from baton.engine.settings.counters import Counters
from baton.engine.sizing.host_sizes import HostSizes
from baton.kernels import huge_pages

_CPU = torch.device("cpu")


class HostPools(NamedTuple):
    """The host's pools behind a prefix cache, and their storages: [blocks, bytes] uint8."""

    cached: CachedPools
    states: Tensor
    pages: Tensor


def host_pools(sizes: HostSizes) -> HostPools:
    """Allocate them, pinned beside a GPU. The sizes have been checked."""
    slots, pages = sizes.plan.slot_layout, sizes.plan.page_layout
    pinned = sizes.plan.config.on_gpu
    states = StatePool(slots, sizes.slots, _CPU, _zeros(sizes.slots, slots.slot_bytes, pinned))
    kv = PagePool(pages, sizes.pages, _CPU, _zeros(sizes.pages, pages.page_bytes, pinned))
    tables = RequestTables(TableSizes(1, 1, 1, 1), _CPU)  # no request runs here
    cached = CachedPools(states, kv, tables, caching=True, counters=Counters())
    return HostPools(cached, states.storage, kv.storage)


def _zeros(blocks: int, nbytes: int, pinned: bool) -> Tensor:
    zeros = huge_pages.zeros((blocks, nbytes), torch.uint8, _CPU)
    if pinned and nbytes:
        # torch's own pinned memory is rounded up to a power of two.
        pin = torch.cuda.cudart().cudaHostRegister  # type: ignore[no-untyped-call]
        torch.cuda.check_error(pin(zeros.data_ptr(), zeros.nbytes, 0))
    return zeros
