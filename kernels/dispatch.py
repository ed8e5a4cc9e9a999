"""The choice of the implementation whose kernels a model calls."""

import torch

from baton.kernels.base import Kernels
from baton.kernels.kernel_choice import KernelChoice
from baton.kernels.native.library import load
from baton.kernels.native.recorder import Native
from baton.kernels.native_kernels import NativeKernels
from baton.kernels.torch_kernels import TORCH


def select(device: torch.device, dtype: torch.dtype, choice: KernelChoice) -> Kernels:
    """Return the kernels for a model whose weights have `dtype` on `device`.

    AUTO is Triton on a GPU and the native library on a CPU. Torch takes the place of the native
    library, with one warning, if the library cannot be built, and for dtypes that it does not read.
    """
    if device.type == "cuda" and choice is KernelChoice.AUTO:
        # Imported here because it loads Triton's compiler, which processes on a CPU do without.
        from baton.kernels.triton.compiler import use_host_cache
        from baton.kernels.triton.triton_kernels import TritonKernels

        use_host_cache()
        return TritonKernels()
    handled = device.type == "cpu" and dtype in (torch.float32, torch.bfloat16)
    if choice is KernelChoice.TORCH or not handled:
        return TORCH
    library = load()
    return TORCH if library is None else NativeKernels(Native(library))
