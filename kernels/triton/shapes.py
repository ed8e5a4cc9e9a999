"""Block sizes, and what kernels ask of the memory that they are given."""

from functools import cache

import torch
from torch import Tensor

from baton.kernels.scratch import PROCESSORS

# The smallest side of a block that tensor cores multiply.
SMALLEST_DOT = 16


def block(size: int, least: int = 1) -> int:
    """Return the smallest power of two that is at least `size` and `least`."""
    return max(least, 1 << (size - 1).bit_length())


def packed(tensor: Tensor, strided: int = 1) -> Tensor:
    """Return `tensor` if its dimensions after the first `strided` lie end to end; those may lie
    anyhow.

    Raises ValueError otherwise.
    """
    expected = 1
    inner = zip(reversed(tensor.shape[strided:]), reversed(tensor.stride()[strided:]), strict=True)
    for size, stride in inner:
        if size != 1 and stride != expected:
            raise ValueError(
                f"a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()} should be "
                f"strided over its first {strided} dimensions alone; make it contiguous"
            )
        expected *= size
    return tensor


@cache
def processors(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU; an H200's for the devices that stand in for
    one, under the interpreter and in ahead-of-time compilation."""
    if device.type != "cuda":
        return PROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
