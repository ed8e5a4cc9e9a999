"""The form in which a model's matrices are kept, of those that an option leaves open."""

import torch

from baton.core.errors import ConfigError
from baton.engine.settings.choices import WeightFormat
from baton.kernels.dispatch import select
from baton.kernels.kernel_choice import KernelChoice
from baton.kernels.linear import packs

_FP8_CAPABILITY = (8, 9)
"""The compute capability (Ada, Hopper) with which GPUs convert FP8."""


def kept_form(
    wanted: WeightFormat, device: torch.device, dtype: torch.dtype, choice: KernelChoice
) -> WeightFormat:
    """Return `wanted`, or what AUTO stands for. Raises ConfigError for FP8 that the products of a
    model on `device` do not read.
    """
    reads_fp8 = _reads_fp8(device, dtype, choice)
    if wanted is WeightFormat.AUTO:
        return WeightFormat.FP8 if reads_fp8 else WeightFormat.MODEL
    if wanted is WeightFormat.FP8 and not reads_fp8:
        raise ConfigError(
            "weight_format fp8 needs the native kernels, on a CPU that multiplies packed weights "
            f"of {str(dtype).removeprefix('torch.')} (AVX-512, for bfloat16 with AVX512_BF16), or "
            "a GPU of compute capability 8.9 or above. Use weight_format auto, which expands FP8 "
            "weights elsewhere"
        )
    return wanted


def _reads_fp8(device: torch.device, dtype: torch.dtype, choice: KernelChoice) -> bool:
    if device.type == "cuda":  # plans are made where Triton need not be loaded
        capability = torch.cuda.get_device_capability(device)
        return choice is KernelChoice.AUTO and capability >= _FP8_CAPABILITY
    return packs(select(device, dtype, choice).native, dtype)


def check_device(wanted: WeightFormat, device: torch.device) -> None:
    """Raise ConfigError for weights that are rounded to 8 bits on a GPU."""
    if wanted is WeightFormat.INT8 and device.type != "cpu":
        raise ConfigError(
            f"weight_format {wanted} is for the CPU; got device {device}, whose products would "
            "expand each matrix at every call. Use weight_format model"
        )
