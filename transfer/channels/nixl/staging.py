"""Host memory in which a writer puts KV together for a peer whose ranks keep other heads, and from
which a reader takes it apart."""

import numpy as np
from numpy.typing import NDArray

from baton.transfer.memory.regions import Span

BUFFER_BYTES = 4 << 20
"""The KV of one segment. Half of it was slower by a third, because each post has a fixed cost."""
BUFFERS = 4
STAGING_BYTES = BUFFERS * BUFFER_BYTES
"""Bytes of one connection."""

Bytes = NDArray[np.uint8]


class Staging:
    """A few buffers of one size, used again and again: 16 MiB a connection.

    A buffer belongs to one write or read from `hold` to `free`, because NIXL uses it until that has
    ended. Used by one thread at a time.
    """

    def __init__(self, buffer_bytes: int, buffers: int) -> None:
        self.buffer_bytes = buffer_bytes
        self._bytes = np.empty((buffers, buffer_bytes), np.uint8)
        self._free = list(range(buffers))
        self._held: dict[int, int] = {}  # buffers in use, by the number of the write or read

    @property
    def span(self) -> Span:
        """Return the place of the buffers."""
        buffers = len(self._bytes)
        return Span(self._bytes.ctypes.data, self.buffer_bytes, buffers, None)

    @property
    def full(self) -> bool:
        """True while every buffer is in use."""
        return not self._free

    @property
    def next(self) -> Bytes:
        """Return a free buffer, [buffer_bytes] uint8: the one that `hold` takes."""
        buffer: Bytes = self._bytes[self._free[-1]]
        return buffer

    def hold(self, post: int) -> None:
        """Keep the buffer `next` for a write or a read that uses it."""
        self._held[post] = self._free.pop()

    def held(self, post: int) -> Bytes | None:
        """Return the buffer of a write or a read, None where it has none."""
        number = self._held.get(post)
        return None if number is None else self._bytes[number]

    def free(self, post: int) -> None:
        """Free the buffer of a write or a read that has ended, if it had one."""
        if (number := self._held.pop(post, None)) is not None:
            self._free.append(number)
