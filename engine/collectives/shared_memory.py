"""Memory that the ranks of a replica share, and how each of them finds it."""

import mmap
import os

import torch

from baton.core.errors import InvariantError
from baton.engine.collectives.comm import Shard
from baton.kernels.collective import END_WORD, OTHER_SUM, Meeting, shared_words

_CAPACITY = 1 << 18  # float32 values of one rank in one meeting: 1 MiB


class SharedMemory:
    """One rank's mapping of the memory, which has no name: ranks inherit its descriptor."""

    def __init__(self, descriptor: int, shard: Shard, parent: int, timeout_s: float) -> None:
        """parent: the leader's process, for other ranks; 0 for the leader. The descriptor may be
        closed afterwards.
        """
        size = 4 * shared_words(shard.size, _CAPACITY)
        words = torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.int32)
        state = torch.zeros(2, dtype=torch.int64)
        self._words = words
        self.meeting = Meeting(words, state, shard.rank, shard.size, _CAPACITY, parent, timeout_s)

    @staticmethod
    def create(size: int) -> int:
        """Return the descriptor of new memory for `size` ranks, which child processes inherit if
        they are told to.
        """
        descriptor = os.memfd_create("baton-ranks")
        os.ftruncate(descriptor, 4 * shared_words(size, _CAPACITY))
        return descriptor

    @property
    def meetings(self) -> int:
        """The number of times that this rank has met the others."""
        return int(self.meeting.state[0])

    def check(self) -> None:
        """Raise TimeoutError if this rank has waited for others in vain, and InvariantError if they
        came for another sum.
        """
        failed = int(self.meeting.state[1])
        if failed == OTHER_SUM:
            raise InvariantError("the ranks have met for different sums: one is ahead of another")
        if failed:
            raise TimeoutError("the other ranks did not come in time, or have ended")

    def end(self) -> None:
        """End the waits of all ranks: the replica is over."""
        self._words[END_WORD] = 1
