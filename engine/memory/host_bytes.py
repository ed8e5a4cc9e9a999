"""Bytes from elsewhere into a pool in the host's memory."""

import numpy as np
from numpy.typing import NDArray

from baton.kernels.native.library import load

PAST_CACHE_BYTES = 128 << 10
"""The size from which a copy bypasses the CPU's caches: what a peer sends is read when its request
is decoded, long after, and state pushes everything else out of a core's cache. Measured: a third to
a half of the time of a copy through the caches, from 128 KiB on."""

Bytes = NDArray[np.uint8]


class HostBytes:
    """One pool's storage as bytes: [bytes] uint8."""

    def __init__(self, storage: Bytes) -> None:
        self._bytes = storage
        self.address: int = storage.ctypes.data
        self._native = load()

    def view(self, start: int, nbytes: int) -> memoryview:
        """Return a view of the pool's own bytes."""
        return self._bytes[start : start + nbytes].data

    def put(self, start: int, payload: memoryview) -> None:
        """Copy `payload` to [start, start + its bytes). The interpreter's other threads run
        meanwhile."""
        source = np.frombuffer(payload, np.uint8)
        target = self._bytes[start : start + source.size]
        if self._native is None or source.size < PAST_CACHE_BYTES or target.size != source.size:
            np.copyto(target, source)
        else:
            self._native.copy_past_cache(self.address + start, source.ctypes.data, source.size)
