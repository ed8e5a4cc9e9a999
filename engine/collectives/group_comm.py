"""Collectives over one of torch's process groups."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._distributed_c10d import (
    AllreduceOptions,
    BroadcastOptions,
    FileStore,
    GatherOptions,
)

from baton.engine.collectives.comm import Shard

JOIN_S = 120.0
"""Seconds that ranks wait for one another at the start."""


class GroupComm:
    """One rank's end of a group. Not torch.distributed's global group: a process may have several
    engines.

    Each collective raises RuntimeError when another rank has gone, or after `timeout_s`, if it runs
    on the host; on a GPU it is enqueued on the current stream, and nothing waits for it here.
    """

    def __init__(self, group: Any, shard: Shard, timeout_s: float) -> None:
        self._group = group
        self._shard = shard
        limit = timedelta(seconds=timeout_s)
        self._reduce, self._gather = AllreduceOptions(), GatherOptions()
        self._broadcast = BroadcastOptions()
        self._reduce.timeout = self._gather.timeout = self._broadcast.timeout = limit
        self._gather.rootRank = self._broadcast.rootRank = 0
        # NCCL would put the others on a stream of its own, with two events for each.
        self._reduce.asyncOp = self._gather.asyncOp = self._broadcast.asyncOp = False

    def all_reduce(self, x: Tensor) -> Tensor:
        """See `Comm`. In place where `x` is contiguous."""
        x = x.contiguous()
        _wait(self._group.allreduce([x], self._reduce))
        return x

    def broadcast(self, x: Tensor) -> Tensor:
        """Fill `x` with rank 0's, in place, and return it. x: contiguous"""
        if x.numel():
            _wait(self._group.broadcast([x], self._broadcast))
        return x

    def gather(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        """See `Comm`."""
        root = self._shard.rank == 0
        if not x.shape[0]:
            return x.new_empty(0, sum(widths)) if root else x
        widest = max(widths)
        own = F.pad(x, (0, widest - x.shape[1])).contiguous()  # groups gather equal shapes alone
        found = [torch.empty_like(own) for _ in widths] if root else []
        _wait(self._group.gather([found] if root else [], [own], self._gather))
        if not root:
            return x
        return torch.cat([part[:, :n] for part, n in zip(found, widths, strict=True)], dim=1)

    def end(self) -> None:
        """End what waits for other ranks, on the device too. No collective can follow."""
        self._group.abort()


def _wait(work: Any) -> None:
    """Wait for a collective of the host. What is in its place on the stream has no work."""
    if work is not None:
        work.wait()


def meeting_place(folder: Path, shard: Shard) -> FileStore:
    """Return the store by which the ranks find one another. folder: one that all of them can write,
    used by no other group."""
    store = FileStore(str(folder / "store"), shard.size)
    store.set_timeout(timedelta(seconds=JOIN_S))
    return store
