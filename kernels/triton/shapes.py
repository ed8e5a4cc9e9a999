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


def packed(tensor: Tensor) -> Tensor:
    """Return `tensor` if its dimensions after the first lie end to end; the first may be strided.

    Raises ValueError otherwise.
    """
    expected = 1
    for size, stride in zip(reversed(tensor.shape[1:]), reversed(tensor.stride()[1:]), strict=True):
        if size != 1 and stride != expected:
            raise ValueError(
                f"a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()} should be "
                "strided over its first dimension alone; make it contiguous"
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
