"""Collectives over shared memory, as steps record them."""

import os

import torch

from baton.engine.collectives.comm import Shard
from baton.engine.collectives.shared_comm import SharedComm
from baton.engine.collectives.shared_memory import SharedMemory
from baton.kernels.native.library import load
from baton.kernels.native.recorder import Native


def test_the_first_gather_of_a_rank_may_be_in_a_recording() -> None:
    """A rank whose first work is a draft for a request that was handed over records it at once."""
    library = load()
    assert library is not None
    native, descriptor = Native(library), SharedMemory.create(1)
    memory = SharedMemory(descriptor, Shard(0, 1), 0, 60.0)
    os.close(descriptor)
    x = torch.arange(12.0).view(3, 4)
    comm = SharedComm(native, memory)
    recording, y = native.record(lambda: comm.gather(x, (4,)))
    recording.run()
    assert torch.equal(y, x)
