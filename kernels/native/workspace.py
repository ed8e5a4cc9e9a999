"""Memory of operations that run as they are called.

Fresh memory costs a page fault and a cleared page for every 4 KiB that is written: of a prompt's
step 8 % of its time. Here a block that no tensor looks at any more serves again.
"""

import mmap
import sys
from collections import defaultdict
from math import prod

import torch
from torch import Tensor

_SMALLEST = 1 << 16  # bytes; below it the allocator keeps memory itself
_LARGER = (1, 2, 4)  # times what is asked for: sizes of blocks that may serve
_REFERENCES = 3  # to a block that is free, as `_free` counts: its list, the loop, the count itself


class Workspace:
    """Blocks by size, a power of two. One thread makes tensors; any may drop them.

    A tensor refers to its block for as long as any view of it lives; nothing else does.
    """

    def __init__(self) -> None:
        self._blocks: dict[int, list[memoryview]] = defaultdict(list)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Allocate like torch.empty on a CPU."""
        count = prod(shape)
        nbytes = count * dtype.itemsize
        if nbytes < _SMALLEST:
            return torch.empty(shape, dtype=dtype)
        size = 1 << (nbytes - 1).bit_length()
        block = self._free(size)
        if block is None:
            block = self._new(size)
        return torch.frombuffer(block, dtype=dtype, count=count).view(shape)

    def _free(self, size: int) -> memoryview | None:
        for times in _LARGER:
            for block in self._blocks[times * size]:
                if sys.getrefcount(block) == _REFERENCES:
                    return block
        return None

    def _new(self, size: int) -> memoryview:
        memory = mmap.mmap(-1, size)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        block = memoryview(memory)
        self._blocks[size].append(block)
        return block
