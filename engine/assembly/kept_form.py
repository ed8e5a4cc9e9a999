"""The form in which a model's matrices are kept, of those that an option leaves open."""

import torch

from baton.core.errors import ConfigError
from baton.engine.loading.rounding import Rounding
from baton.engine.loading.scales import FP8
from baton.engine.settings.choices import WeightFormat
from baton.engine.settings.quantisation import UNQUANTISED, Quantisation
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
            "weights elsewhere, or int8 on a CPU"
        )
    return wanted


def _reads_fp8(device: torch.device, dtype: torch.dtype, choice: KernelChoice) -> bool:
    if device.type == "cuda":  # plans are made where Triton need not be loaded
        capability = torch.cuda.get_device_capability(device)
        return choice is KernelChoice.AUTO and capability >= _FP8_CAPABILITY
    return packs(select(device, dtype, choice).native, dtype)


def rounding_of(
    form: WeightFormat, quantisation: Quantisation, vocabulary: bool
) -> Rounding | None:
    """Return how matrices that the files do not hold in 8 bits are rounded; None where they stay as
    they are, as in FP8 what the author of a quantised checkpoint left out.

    form: as it was asked for; AUTO rounds nothing. vocabulary: round the embedding and the head too
    """
    if form is WeightFormat.INT8:
        return Rounding(torch.int8, vocabulary)
    if form is WeightFormat.FP8 and quantisation == UNQUANTISED:
        return Rounding(FP8, vocabulary)
    return None


def check_rounding(form: WeightFormat, quantisation: Quantisation, vocabulary: bool) -> None:
    """Raise ConfigError for a vocabulary that is to be rounded where nothing else is."""
    if vocabulary and rounding_of(form, quantisation, vocabulary) is None:
        raise ConfigError(
            "round_vocabulary rounds the embedding and the head with the other weights: give it "
            f"with weight_format fp8 or int8, for a checkpoint without quantisation; got {form} "
            f"for one with {quantisation.name}"
        )


def check_device(wanted: WeightFormat, device: torch.device) -> None:
    """Raise ConfigError for weights that are rounded to 8 bits on a GPU."""
    if wanted is WeightFormat.INT8 and device.type != "cpu":
        raise ConfigError(
            f"weight_format {wanted} is for the CPU; got device {device}, whose products would "
            "expand each matrix at every call. Use weight_format model"
        )
