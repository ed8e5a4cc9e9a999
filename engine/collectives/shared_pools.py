"""The pools of a replica's ranks, in memory that their leader maps too.

The leader reads and writes the pools of all ranks for transfers, so that what moves between two
replicas is moved by their leaders, whatever number of ranks each has.
"""

import os
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Protocol

import torch

from baton.engine.collectives.rank_messages import RankPools
from baton.engine.layout.layout import PageLayout, SlotLayout
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.rank_storage import RankStorage, RankStorages
from baton.engine.memory.state_pool import StatePool
from baton.engine.settings.config import ModelConfig
from baton.kernels import huge_pages


class AllPools(Protocol):
    """The pools of all ranks, which their leader has made."""

    storages: RankStorages

    def send(self, rank: int, connection: Connection, process: int) -> None:
        """Give a rank's process what it opens its pools by. Raises OSError."""
        ...

    def close(self) -> None:
        """Drop what is not needed once all ranks have theirs."""
        ...


class SharedPools:
    """The pools of all ranks in the host's memory, and the descriptors by which the others map
    theirs."""

    def __init__(self, whole: ModelConfig, pools: RankPools, own: RankStorage, size: int) -> None:
        """Make the pools of all ranks but the first, whose are `own`. whole: the undivided
        model."""
        slots = SlotLayout(whole.recurrent, whole.conv_dtype, whole.ssm_dtype)
        pages = PageLayout(whole.attention, pools.page_size, whole.dtype)
        self._descriptors: list[tuple[int, int]] = []  # of each rank but the first
        storages = [own]
        for rank in range(1, size):
            sizes = slots.shard(rank, size).slot_bytes, pages.shard(rank, size).page_bytes
            shapes = (pools.slots, sizes[0]), (pools.pages, sizes[1])
            made = _create(*shapes[0]), _create(*shapes[1])
            storages.append(RankStorage(*map(huge_pages.shared, made, shapes)))
            self._descriptors.append(made)
        self.storages = RankStorages(slots, pages, tuple(storages))

    def send(self, rank: int, connection: Connection, process: int) -> None:
        """See `AllPools`."""
        for descriptor in self._descriptors[rank - 1]:
            send_handle(connection, descriptor, process)

    def close(self) -> None:
        """Close the descriptors. What is mapped stays."""
        for descriptor in (each for pair in self._descriptors for each in pair):
            os.close(descriptor)


def mapped_pools(
    part: ModelConfig, pools: RankPools, leader: Connection
) -> tuple[StatePool, PagePool]:
    """Return one rank's pools in the memory that the leader has made and sends. part: of the
    model."""
    cpu = torch.device("cpu")
    descriptors = recv_handle(leader), recv_handle(leader)
    slots = SlotLayout(part.recurrent, part.conv_dtype, part.ssm_dtype)
    pages = PageLayout(part.attention, pools.page_size, part.dtype)
    of_slots, of_pages = descriptors
    states = huge_pages.shared(of_slots, (pools.slots, slots.slot_bytes))
    kv = huge_pages.shared(of_pages, (pools.pages, pages.page_bytes))
    for descriptor in descriptors:
        os.close(descriptor)
    return StatePool(slots, pools.slots, cpu, states), PagePool(pages, pools.pages, cpu, kv)


def _create(blocks: int, block_bytes: int) -> int:
    descriptor = os.memfd_create("baton-pool")
    os.ftruncate(descriptor, max(1, blocks * block_bytes))
    return descriptor
