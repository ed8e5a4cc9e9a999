"""FP8 weights as numbers of the model's dtype: each value times the scale of its block."""

import torch
from torch import Tensor

from baton.engine.loading.weight_part import WeightPart

_SLICE = 1 << 20  # values that are expanded at once


def scale_values(stored: Tensor) -> Tensor:
    """Return scales as float32, from the form in which the file has them."""
    if stored.dtype is torch.uint8:
        stored = stored.view(torch.float8_e8m0fnu)
    return stored.float()


def expand(
    values: Tensor,
    scales: Tensor,
    blocks: tuple[int, ...],
    part: WeightPart,
    dtype: torch.dtype,
) -> Tensor:
    """Return part of a weight, expanded to `dtype`, in new memory.

    The products are those of float32, rounded once more where `dtype` is narrower. They are
    computed a slice of rows at a time, so that the weight is never held in float32.

    values: the part as the file has it, [..., rows, columns] float8_e4m3fn
    scales: of the whole weight, one a block, of as many dimensions: float32
    blocks: places along each dimension of the whole weight that share a scale
    part: the places of the whole weight that `values` holds; so a part may begin within a block
    """
    expanded = torch.empty(values.shape, dtype=dtype)
    last = values.dim() - 1
    for dim in range(last):
        scales = scales.index_select(dim, _blocks_along(dim, values, blocks, part))
    own = scales.flatten(0, -2)  # [rows of all leading dimensions, blocks of a row]
    columns = _blocks_along(last, values, blocks, part)
    source, target = values.flatten(0, -2), expanded.flatten(0, -2)
    step = max(1, _SLICE // max(1, values.shape[-1]))
    for first in range(0, source.shape[0], step):
        rows = slice(first, first + step)
        factors = own[rows]
        if factors.shape[1] > 1:
            factors = factors.index_select(1, columns)
        target[rows] = source[rows].float().mul_(factors)
    return expanded


def _blocks_along(dim: int, values: Tensor, blocks: tuple[int, ...], part: WeightPart) -> Tensor:
    """Return the block of each place that `values` has along `dim`: [places] int64."""
    if part.spans and dim == part.dim:
        places = torch.cat([torch.arange(span.start, span.stop) for span in part.spans])
    else:
        places = torch.arange(values.shape[dim])
    return places // blocks[dim]
