"""The collectives of ranks that are processes of one host, over gloo."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._distributed_c10d import (
    AllreduceOptions,
    FileStore,
    GatherOptions,
    ProcessGroupGloo,
)

from baton.engine.ranks.comm import Comm, Shard
from baton.engine.ranks.shared_comm import SharedComm
from baton.engine.ranks.shared_memory import SharedMemory
from baton.kernels.base import Kernels

_LOOPBACK = "127.0.0.1"
JOIN_S = 120.0
"""Seconds that ranks wait for one another at the start."""


class GlooComm:
    """One rank's end of the group. Not torch.distributed's global group: a process may have
    several engines.

    Each collective raises RuntimeError when another rank has gone, or after `timeout_s`.
    """

    def __init__(
        self, folder: Path, shard: Shard, timeout_s: float, memory: SharedMemory | None = None
    ) -> None:
        """Wait for the other ranks, at most JOIN_S. folder: one that all of them can write,
        used by no other group. memory: that native kernels add up in; None: they use gloo too.
        """
        limit = timedelta(seconds=JOIN_S)
        store = FileStore(str(folder / "store"), shard.size)
        store.set_timeout(limit)
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # torch has no stub
        options._devices = [ProcessGroupGloo.create_device(hostname=_LOOPBACK)]
        options._timeout = limit
        self._group: Any = ProcessGroupGloo(store, shard.rank, shard.size, options)
        self._reduce, self._gather = AllreduceOptions(), GatherOptions()
        self._reduce.timeout = self._gather.timeout = timedelta(seconds=timeout_s)
        self._gather.rootRank = 0
        self._shard = shard
        self._memory = memory

    def all_reduce(self, x: Tensor) -> Tensor:
        """See `Comm`. In place where `x` is contiguous."""
        x = x.contiguous()
        self._group.allreduce([x], self._reduce).wait()
        return x

    def gather(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        """See `Comm`."""
        root = self._shard.rank == 0
        if not x.shape[0]:
            return x.new_empty(0, sum(widths)) if root else x
        widest = max(widths)
        own = F.pad(x, (0, widest - x.shape[1])).contiguous()  # gloo gathers equal shapes alone
        found = [torch.empty_like(own) for _ in widths] if root else []
        self._group.gather([found] if root else [], [own], self._gather).wait()
        if not root:
            return x
        return torch.cat([part[:, :n] for part, n in zip(found, widths, strict=True)], dim=1)

    def on(self, kernels: Kernels) -> Comm:
        """See `Comm`. Native kernels add up in shared memory."""
        if self._memory is None or kernels.native is None:
            return self
        return SharedComm(kernels.native, self._memory)

    def check(self) -> None:
        """See `Comm`: for native kernels. A collective of gloo raises by itself."""
        if self._memory is not None:
            self._memory.check()
