"""The collectives of ranks on the CPU of one host, by native kernels over shared memory."""

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from baton.engine.collectives.comm import Comm
from baton.engine.collectives.shared_memory import SharedMemory
from baton.kernels.base import Kernels
from baton.kernels.collective import all_reduce_native, gather_columns_native
from baton.kernels.native.recorder import Native


class SharedComm:
    """A `Comm` for float32 tensors, whose collectives can be recorded.

    A collective does not raise: `check` does, when the step is over.
    """

    def __init__(self, native: Native, memory: SharedMemory) -> None:
        self._native = native
        self._memory = memory
        self._widths: dict[tuple[int, ...], Tensor] = {}  # recorded gathers read them

    def all_reduce(self, x: Tensor) -> Tensor:
        """See `Comm`. In place where `x` is contiguous."""
        x = x.contiguous()
        all_reduce_native(self._native, x, self._memory.meeting)
        return x

    def gather(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        """See `Comm`."""
        key = tuple(widths)
        if key not in self._widths:
            # Not `torch.tensor`, which is an operation that no recording may have.
            self._widths[key] = torch.frombuffer(array("q", key), dtype=torch.int64)
        return gather_columns_native(
            self._native, x.contiguous(), self._widths[key], key, self._memory.meeting
        )

    def on(self, kernels: Kernels) -> Comm:
        """See `Comm`."""
        return self

    def check(self) -> None:
        """See `Comm`."""
        self._memory.check()
