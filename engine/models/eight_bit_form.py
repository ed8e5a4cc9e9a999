"""The forms in which products read matrices of 8 bits."""

import torch
from torch import Tensor

from baton.engine.loading.eight_bit_part import EightBitPart
from baton.engine.loading.weights import Shape
from baton.engine.models.tally import Tally
from baton.kernels.base import Kernels
from baton.kernels.eight_bit_weight import EightBitExperts, EightBitWeight, Fp8Words


def empty_experts(
    shape: Shape,
    stored: EightBitPart,
    kernels: Kernels,
    dtype: torch.dtype,
    device: torch.device,
) -> Fp8Words | EightBitExperts:
    """Allocate experts [E, O, K] of the numbers and groups of `stored`. dtype: of the products"""
    if kernels.reads_fp8_words:
        return Fp8Words.empty(shape, stored.group, dtype, device)
    return EightBitExperts.empty(shape, stored.group, dtype, device, stored.values.dtype)


def matrix_of(
    stored: EightBitPart,
    kernels: Kernels,
    dtype: torch.dtype,
    device: torch.device,
    tally: Tally,
) -> Tensor | EightBitWeight | Fp8Words:
    """Return a matrix as products read it; without data, perhaps its values alone. Its bytes are
    counted in `tally`. dtype: of the products
    """
    if kernels.reads_fp8_words:
        words = Fp8Words.empty(stored.values.shape, stored.group, dtype, device)
        words.put(slice(None), stored.values, stored.scales)
        tally.add_eight_bit(words.nbytes)
        return words
    rows, columns = stored.values.shape
    tally.add_eight_bit(EightBitWeight.nbytes_of(rows, columns, stored.scales.shape[1], dtype))
    if stored.values.is_meta:
        return stored.values
    return EightBitWeight.of(stored.values, stored.scales, stored.group, dtype)
