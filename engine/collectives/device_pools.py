"""The pools of a replica's ranks on GPUs, in memory that the leader has allocated on each of them.

As with `SharedPools`, the leader reads and writes the pools of all ranks for transfers. It
allocates them itself, because a network card can be given only memory of its own process; the other
ranks open theirs by CUDA's handles between processes.
"""

from multiprocessing.connection import Connection

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from baton.engine.collectives.rank_messages import RankPools
from baton.engine.layout.layout import PageLayout, SlotLayout
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.rank_storage import RankStorage, RankStorages
from baton.engine.memory.state_pool import StatePool
from baton.engine.settings.config import ModelConfig


class DevicePools:
    """The pools of all ranks; see `baton.engine.collectives.shared_pools.AllPools`."""

    def __init__(self, whole: ModelConfig, pools: RankPools, own: RankStorage, size: int) -> None:
        """Make the pools of all ranks but the first, whose are `own`. whole: the undivided
        model."""
        slots = SlotLayout(whole.recurrent, whole.conv_dtype, whole.ssm_dtype)
        pages = PageLayout(whole.attention, pools.page_size, whole.dtype)
        storages = [own]
        for rank in range(1, size):
            device = torch.device(own.states.device.type, rank)
            sizes = slots.shard(rank, size).slot_bytes, pages.shard(rank, size).page_bytes
            states = _zeros((pools.slots, sizes[0]), device)
            storages.append(RankStorage(states, _zeros((pools.pages, sizes[1]), device)))
        self.storages = RankStorages(slots, pages, tuple(storages))

    def send(self, rank: int, connection: Connection, process: int) -> None:
        """Send the handles of a rank's pools. They are valid while the leader lives."""
        connection.send(
            [
                reduce_tensor(each)  # type: ignore[no-untyped-call]
                for each in self.storages.ranks[rank]
            ]
        )

    def close(self) -> None:
        """Do nothing: the storages hold the memory."""


def opened_pools(
    part: ModelConfig, pools: RankPools, leader: Connection, device: torch.device
) -> tuple[StatePool, PagePool]:
    """Return one rank's pools in the memory that the leader has made and sends. part: of the
    model."""
    states, kv = (rebuild(*given) for rebuild, given in leader.recv())
    slots = SlotLayout(part.recurrent, part.conv_dtype, part.ssm_dtype)
    pages = PageLayout(part.attention, pools.page_size, part.dtype)
    of_states = StatePool(slots, pools.slots, device, states)
    return of_states, PagePool(pages, pools.pages, device, kv)


def _zeros(shape: tuple[int, int], device: torch.device) -> Tensor:
    return torch.zeros(shape, dtype=torch.uint8, device=device)
