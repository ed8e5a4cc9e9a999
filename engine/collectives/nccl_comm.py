"""The collectives of ranks that are GPUs of one host, over NCCL."""

from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path

import torch

from baton.core.errors import ConfigError
from baton.core.supervised import child_thread
from baton.engine.collectives.comm import Comm, Shard
from baton.engine.collectives.group_comm import JOIN_S, GroupComm, meeting_place
from baton.kernels.base import Kernels


class NcclComm(GroupComm):
    """A `Comm` for ranks on GPUs. CUDA graphs can hold its collectives.

    A collective is enqueued on the current stream. One for which another rank does not come holds
    up the stream until `end`: who waits for the step calls it. NCCL chooses its algorithm by the
    size of a call and the topology, which are the same on all ranks, and each element is added up
    once and passed on, so that all ranks get the same bits (github.com/NVIDIA/nccl/issues/855).
    """

    def __init__(self, folder: Path, shard: Shard, timeout_s: float, device: torch.device) -> None:
        """Wait for the other ranks, at most JOIN_S, and connect, in as long. folder: see
        `meeting_place`. device: the calling thread's current one. Raises ConfigError where torch
        has no NCCL, and RuntimeError where another rank does not come.
        """
        try:
            from torch._C._distributed_c10d import (
                ProcessGroupNCCL,
            )
        except ImportError as error:
            raise ConfigError(
                f"tp {shard.size} on GPUs needs NCCL, and torch {torch.__version__} is built "
                "without it: install a torch that was built for CUDA, or use --device cpu"
            ) from error
        options = ProcessGroupNCCL.Options()
        # NCCL's watchdog ends the process without our reason: it comes after our own deadlines.
        options._timeout = timedelta(seconds=JOIN_S + 2 * timeout_s)
        store = meeting_place(folder, shard)
        group = ProcessGroupNCCL(store, shard.rank, shard.size, options)
        super().__init__(group, shard, timeout_s)

        def connect() -> None:  # which a capture must not
            torch.cuda.set_device(device)
            self.all_reduce(torch.zeros(1, device=device))
            torch.cuda.synchronize(device)

        within(JOIN_S, connect, shard)

    def on(self, kernels: Kernels) -> Comm:
        """See `Comm`."""
        return self

    def check(self) -> None:
        """Do nothing: the stream waits, and whoever waits for the stream has a deadline."""


def within(limit_s: float, connect: Callable[[], object], shard: Shard) -> None:
    """Call `connect` on a thread: NCCL waits for ever for a rank that ends meanwhile. Raises what
    it raises, and RuntimeError after `limit_s`.
    """
    ended: Future[None] = Future()

    def call() -> None:
        connect()
        ended.set_result(None)

    child_thread(call, "nccl connects", ended.set_exception)
    try:
        ended.result(limit_s)
    except TimeoutError:
        raise RuntimeError(
            f"NCCL has not connected rank {shard.rank} to the other {shard.size - 1} within "
            f"{limit_s:g} s: one has ended or cannot be reached; NCCL_DEBUG=INFO says more"
        ) from None
