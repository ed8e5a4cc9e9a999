"""8-bit weights as numbers of the model's dtype: each value times the scale of its block."""

import torch
from torch import Tensor

from baton.engine.loading.weight_part import WeightPart
from baton.kernels import huge_pages

_SLICE = 1 << 20  # values that are expanded at once
_CPU = torch.device("cpu")
# The bits of float32 that those of an FP8 number fill once they are moved up by 20: the sign, the
# lowest of the exponent, the highest of the mantissa.
_MOVED, _FILLED = 20, -0x8000_0000 | 0x07F0_0000
_BIAS = 2.0**120  # of float32's exponents (127) over FP8's (7)
_LARGEST = 448.0


def scale_values(stored: Tensor) -> Tensor:
    """Return scales as float32, from the form in which the file has them."""
    if stored.dtype is torch.uint8:
        stored = stored.view(torch.float8_e8m0fnu)
    return stored.float()


def numbers(values: Tensor, out: Tensor) -> Tensor:
    """Return 8-bit numbers as float32. FP8 ones are made of their bits, which takes a quarter of
    the time of torch's cast.

    values: float8_e4m3fn or int8; out: int32 of the same shape, whose memory the result takes
    """
    if values.dtype is torch.int8:
        return out.view(torch.float32).copy_(values)
    out.copy_(values.view(torch.int8))
    found = out.bitwise_left_shift_(_MOVED).bitwise_and_(_FILLED).view(torch.float32).mul_(_BIAS)
    least, most = (float(end) for end in torch.aminmax(found))
    if max(-least, most) > _LARGEST:  # the bits of NaN read as 480
        found.copy_(values)
    return found


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

    values: the part as the file has it, [..., rows, columns] float8_e4m3fn or int8
    scales: of the whole weight, one a block, of as many dimensions: float32
    blocks: places along each dimension of the whole weight that share a scale
    part: the places of the whole weight that `values` holds; so a part may begin within a block
    """
    # Large tensors go back to the system once the model has copied them, as does the buffer: the C
    # library's heap would keep the holes between what stays.
    expanded = huge_pages.empty(values.shape, dtype, _CPU)
    if not values.numel():
        return expanded
    last = values.dim() - 1
    for dim in range(last):
        scales = scales.index_select(dim, _blocks_along(dim, values, blocks, part))
    own = scales.flatten(0, -2)  # [rows of all leading dimensions, blocks of a row]
    runs = _runs(_blocks_along(last, values, blocks, part))
    source, target = values.flatten(0, -2), expanded.flatten(0, -2)
    step = min(max(1, _SLICE // source.shape[1]), source.shape[0])
    buffer = huge_pages.empty((step, source.shape[1]), torch.int32, _CPU)
    for first in range(0, source.shape[0], step):
        stored, factors = source[first : first + step], own[first : first + step]
        exact = numbers(stored, buffer[: stored.shape[0]])
        for block, columns in runs:
            exact[:, columns].mul_(factors[:, block : block + 1])
        target[first : first + step] = exact
    return expanded


def _blocks_along(dim: int, values: Tensor, blocks: tuple[int, ...], part: WeightPart) -> Tensor:
    """Return the block of each place that `values` has along `dim`: [places] int64."""
    if part.spans and dim == part.dim:
        places = torch.cat([torch.arange(span.start, span.stop) for span in part.spans])
    else:
        places = torch.arange(values.shape[dim])
    return places // blocks[dim]


def _runs(blocks: Tensor) -> list[tuple[int, slice]]:
    """Return the neighbours that are in one block: that block, and their places."""
    each, counts = torch.unique_consecutive(blocks, return_counts=True)
    ends = counts.cumsum(0).tolist()
    starts = [0, *ends[:-1]]
    return list(zip(each.tolist(), map(slice, starts, ends), strict=True))
