"""The collectives of ranks that are processes of one host, over gloo."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._distributed_c10d import FileStore, ProcessGroupGloo

from baton.engine.ranks.comm import Shard

_LOOPBACK = "127.0.0.1"


class GlooComm:
    """One rank's end of the group. Not torch.distributed's global group: a process may have
    several engines.

    Each collective raises RuntimeError when another rank has gone, or after `timeout_s`.
    """

    def __init__(self, folder: Path, shard: Shard, timeout_s: float) -> None:
        """Wait for the other ranks, at most `timeout_s`. folder: one that all of them can write,
        used by no other group.
        """
        limit = timedelta(seconds=timeout_s)
        store = FileStore(str(folder / "store"), shard.size)
        store.set_timeout(limit)
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # torch has no stub
        options._devices = [ProcessGroupGloo.create_device(hostname=_LOOPBACK)]
        options._timeout = limit
        self._group: Any = ProcessGroupGloo(store, shard.rank, shard.size, options)
        self._shard = shard

    def all_reduce(self, x: Tensor) -> Tensor:
        """See `Comm`. In place where `x` is contiguous."""
        x = x.contiguous()
        self._group.allreduce([x]).wait()
        return x

    def gather(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        """See `Comm`."""
        root = self._shard.rank == 0
        if not x.shape[0]:
            return x.new_empty(0, sum(widths)) if root else x
        widest = max(widths)
        own = F.pad(x, (0, widest - x.shape[1])).contiguous()  # gloo gathers equal shapes alone
        found = [torch.empty_like(own) for _ in widths] if root else []
        self._group.gather([found] if root else [], [own]).wait()
        if not root:
            return x
        return torch.cat([part[:, :n] for part, n in zip(found, widths, strict=True)], dim=1)
