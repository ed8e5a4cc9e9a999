"""Host memory in which a writer puts KV together for a peer whose ranks keep other heads."""

import numpy as np
from numpy.typing import NDArray

from baton.transfer.memory.regions import Span

BUFFER_BYTES = 4 << 20
"""The KV of one segment. Half of it was slower by a third, because each post has a fixed cost."""
BUFFERS = 4

Bytes = NDArray[np.uint8]


class Staging:
    """A few buffers of one size, used again and again: 16 MiB a connection.

    A buffer belongs to one write from `hold` to the end of that write, because NIXL reads it until
    then. Used by one thread at a time.
    """

    def __init__(self, buffer_bytes: int, buffers: int) -> None:
        self.buffer_bytes = buffer_bytes
        self._bytes = np.empty((buffers, buffer_bytes), np.uint8)
        self._free = list(range(buffers))
        self._read: dict[int, int] = {}  # buffers under writes, by the write's number

    @property
    def span(self) -> Span:
        """Return the place of the buffers."""
        buffers = len(self._bytes)
        return Span(self._bytes.ctypes.data, self.buffer_bytes, buffers, None)

    @property
    def full(self) -> bool:
        """True while every buffer is under a write."""
        return not self._free

    @property
    def next(self) -> Bytes:
        """Return a free buffer, [buffer_bytes] uint8: the one that `hold` takes."""
        buffer: Bytes = self._bytes[self._free[-1]]
        return buffer

    def hold(self, write: int) -> None:
        """Keep the buffer `next` for a write that reads it."""
        self._read[write] = self._free.pop()

    def free(self, write: int) -> None:
        """Free the buffer of a write that has ended, if it had one."""
        if (number := self._read.pop(write, None)) is not None:
            self._free.append(number)
