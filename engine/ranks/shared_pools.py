"""The pools of a replica's ranks, in memory that their leader maps too.

The leader reads and writes the pools of all ranks for transfers, so that what moves between two
replicas is moved by their leaders, whatever number of ranks each has.
"""

import os

import torch

from baton.engine.config import ModelConfig
from baton.engine.memory.layout import PageLayout, SlotLayout
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.rank_storage import RankStorage, RankStorages
from baton.engine.memory.state_pool import StatePool
from baton.engine.ranks.rank_messages import RankPools
from baton.kernels import huge_pages


class SharedPools:
    """The pools of all ranks, and the descriptors by which the others map theirs."""

    def __init__(self, whole: ModelConfig, pools: RankPools, own: RankStorage, size: int) -> None:
        """Make the pools of all ranks but the first, whose are `own`. whole: the undivided
        model."""
        slots = SlotLayout(whole.recurrent, whole.conv_dtype, whole.ssm_dtype)
        pages = PageLayout(whole.attention, pools.page_size, whole.dtype)
        self.descriptors: list[tuple[int, int]] = []
        storages = [own]
        for rank in range(1, size):
            sizes = slots.shard(rank, size).slot_bytes, pages.shard(rank, size).page_bytes
            shapes = (pools.slots, sizes[0]), (pools.pages, sizes[1])
            made = _create(*shapes[0]), _create(*shapes[1])
            storages.append(RankStorage(*map(huge_pages.shared, made, shapes)))
            self.descriptors.append(made)
        self.storages = RankStorages(slots, pages, tuple(storages))

    def close(self) -> None:
        """Close the descriptors. What is mapped stays."""
        for descriptor in (each for pair in self.descriptors for each in pair):
            os.close(descriptor)


def mapped_pools(
    part: ModelConfig, pools: RankPools, descriptors: tuple[int, int]
) -> tuple[StatePool, PagePool]:
    """Return one rank's pools in the memory that the leader has made. part: of the model."""
    cpu = torch.device("cpu")
    slots = SlotLayout(part.recurrent, part.conv_dtype, part.ssm_dtype)
    pages = PageLayout(part.attention, pools.page_size, part.dtype)
    of_slots, of_pages = descriptors
    states = huge_pages.shared(of_slots, (pools.slots, slots.slot_bytes))
    kv = huge_pages.shared(of_pages, (pools.pages, pages.page_bytes))
    return StatePool(slots, pools.slots, cpu, states), PagePool(pages, pools.pages, cpu, kv)


def _create(blocks: int, block_bytes: int) -> int:
    descriptor = os.memfd_create("baton-pool")
    os.ftruncate(descriptor, max(1, blocks * block_bytes))
    return descriptor
