"""The collectives of ranks that are processes of one host, over gloo."""

from datetime import timedelta
from pathlib import Path

from torch._C._distributed_c10d import ProcessGroupGloo

from baton.engine.collectives.comm import Comm, Shard
from baton.engine.collectives.group_comm import JOIN_S, GroupComm, meeting_place
from baton.engine.collectives.shared_comm import SharedComm
from baton.engine.collectives.shared_memory import SharedMemory
from baton.kernels.base import Kernels

_LOOPBACK = "127.0.0.1"


class GlooComm(GroupComm):
    """A `Comm` for ranks on CPUs."""

    def __init__(
        self, folder: Path, shard: Shard, timeout_s: float, memory: SharedMemory | None = None
    ) -> None:
        """Wait for the other ranks, at most JOIN_S. folder: see `meeting_place`. memory: that
        native kernels add up in; None: they use gloo too.
        """
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # torch has no stub
        options._devices = [ProcessGroupGloo.create_device(hostname=_LOOPBACK)]
        options._timeout = timedelta(seconds=JOIN_S)
        store = meeting_place(folder, shard)
        group = ProcessGroupGloo(store, shard.rank, shard.size, options)
        super().__init__(group, shard, timeout_s)
        self._memory = memory

    def on(self, kernels: Kernels) -> Comm:
        """See `Comm`. Native kernels add up in shared memory."""
        if self._memory is None or kernels.native is None:
            return self
        return SharedComm(kernels.native, self._memory)

    def check(self) -> None:
        """See `Comm`: for native kernels. A collective of gloo raises by itself."""
        if self._memory is not None:
            self._memory.check()
