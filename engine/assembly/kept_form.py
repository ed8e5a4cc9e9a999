"""The form in which a model's matrices are kept, of those that an option leaves open."""

import torch

from baton.core.errors import ConfigError
from baton.engine.settings.choices import EIGHT_BITS, WeightFormat
from baton.kernels.base import Kernels
from baton.kernels.linear import packs


def kept_form(wanted: WeightFormat, kernels: Kernels, dtype: torch.dtype) -> WeightFormat:
    """Return `wanted`, or what AUTO stands for. Raises ConfigError for FP8 that products of these
    kernels do not read.
    """
    reads_fp8 = packs(kernels.native, dtype)
    if wanted is WeightFormat.AUTO:
        return WeightFormat.FP8 if reads_fp8 else WeightFormat.MODEL
    if wanted is WeightFormat.FP8 and not reads_fp8:
        raise ConfigError(
            "weight_format fp8 needs the native kernels, on a CPU that multiplies packed weights "
            f"of {str(dtype).removeprefix('torch.')} (AVX-512, for bfloat16 with AVX512_BF16). "
            "Use weight_format auto, which expands FP8 weights elsewhere"
        )
    return wanted


def check_device(wanted: WeightFormat, device: torch.device) -> None:
    """Raise ConfigError for weights in 8 bits on a GPU."""
    if wanted in EIGHT_BITS and device.type != "cpu":
        raise ConfigError(
            f"weight_format {wanted} is for the CPU; got device {device}, whose products would "
            "expand each matrix at every call. Use weight_format model"
        )
