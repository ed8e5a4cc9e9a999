"""The scales that stand beside the 8-bit weights of a checkpoint.

The headers of the files say which weights are quantised: a tensor of dtype F8_E4M3 or I8 with a
scale beside it. The value of a weight is its 8-bit number times the scale of its block.
`weight_scale_inv` is multiplied too: it is the inverse of the factor that the quantiser multiplied
by (transformers' `integrations/finegrained_fp8.py` and vLLM's `quantization/fp8.py` say so;
`weight_scale` is the name of compressed-tensors and ModelOpt for the same).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch

from baton.core.errors import WeightsError
from baton.engine.loading.weight_file import DTYPES, Entry

FP8 = torch.float8_e4m3fn
EIGHT_BIT = (FP8, torch.int8)
"""The dtypes of weights that have scales."""
_SUFFIXES = ("_scale_inv", "_scale")  # of a weight's name
# Ends of names that nothing but a scale of a weight has.
_SCALES = ("_scale_inv", ".weight_scale")
# What quantisers leave beside modules: scales of activations and of the KV cache, zero points, and
# ModelOpt's largest magnitudes. They make no module quantised, and are not used: weights alone are
# expanded, and KV is kept in the model's dtype.
_UNUSED_ENDS = ("input_scale", "input_global_scale", "activation_scale", "_zero_point", "_amax")
_UNUSED = (
    *(f"{which}_scale" for which in ("k", "v", "q", "kv", "prob", "output")),
    *(f"{which}_cache_scale" for which in ("k", "v", "kv")),
)
_INVERSE = "_inv"
_ZERO_POINT = "_zero_point"
# U8 holds exponents, as F8_E8M0 does.
_SCALE_DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float8_e8m0fnu,
    torch.uint8,
)
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_NAMED_AT_MOST = 20

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Scale:
    """The scales of one 8-bit weight."""

    name: str  # of their tensor
    blocks: Shape  # places along each dimension of the weight that share a scale

    def shape(self, weight: Shape) -> Shape:
        """Return the number of scales along each dimension of a weight of this shape."""
        return tuple(_pieces(size, block) for size, block in zip(weight, self.blocks, strict=True))


@dataclass(frozen=True)
class Fault:
    """A weight and a scale that do not fit together."""

    name: str  # of the tensor at fault
    weight: str
    text: str


@dataclass(frozen=True)
class Pairs:
    """The scales of every 8-bit weight, by the weight's name, and what is wrong with the others."""

    scales: Mapping[str, Scale]
    faults: tuple[Fault, ...]


def pair_scales(entries: Mapping[str, Entry], block: Shape) -> Pairs:
    """Find the scale of each 8-bit weight. Faults are a weight without its scale, a scale without
    its weight, a scale of a wrong shape or dtype.

    block: the rows and columns that share a scale, where scales go by block.
    """
    found: dict[str, Scale] = {}
    faults: list[Fault] = []
    for name, entry in entries.items():
        if is_unused_companion(name):
            continue
        if name.endswith(_SCALES):
            owner = _owner(name)
            faults += [Fault(name, owner, text) for text in _fault_of_owner(name, owner, entries)]
        elif entry.dtype in EIGHT_BIT:
            names = [name + suffix for suffix in _SUFFIXES if name + suffix in entries]
            if len(names) != 1:
                faults.append(Fault(name, name, _wrong_number(name, entry.dtype, names)))
                continue
            scale = entries[names[0]]
            blocks = _blocks(entry.shape, scale.shape, block)
            if blocks is None:
                text = _wrong_shape(name, entry.shape, names[0], scale.shape, block)
                faults.append(Fault(name, name, text))
            elif scale.dtype not in _SCALE_DTYPES:
                faults.append(Fault(name, name, _wrong_dtype(names[0], scale.dtype)))
            else:
                found[name] = Scale(names[0], blocks)
    return Pairs(found, tuple(faults))


def check_faults(faults: Sequence[str], where: str) -> None:
    """Raise one WeightsError that names every fault, if there are any. where: the checkpoint."""
    if faults:
        more = len(faults) - _NAMED_AT_MOST
        rest = f"; and {more} more" if more > 0 else ""
        shown = "; ".join(faults[:_NAMED_AT_MOST])
        raise WeightsError(f"the quantised weights in {where} cannot be read: {shown}{rest}")


def is_unused_companion(name: str) -> bool:
    """Return true for a tensor that quantisers leave beside a module and that no weight needs: a
    scale of activations or of the KV cache, a zero point.
    """
    leaf = name.rpartition(".")[2].removesuffix(_INVERSE)
    return leaf in _UNUSED or leaf.endswith(_UNUSED_ENDS)


def zero_point_of(weight: str) -> str:
    """Return the name of the zero points of a weight. Numbers that count from zero need none;
    some quantisers write zeros.
    """
    return weight + _ZERO_POINT


def _blocks(weight: Shape, scale: Shape, block: Shape) -> Shape | None:
    """Return the blocks of a weight [..., N, K] that scales of this shape belong to; None where
    they fit none.

    Dimensions before the last two are experts, which never share a scale but where there is one
    for all.
    """
    if len(weight) < 2:
        return None
    *experts, rows, columns = weight
    if prod(scale) == 1:
        return weight
    single = (1,) * len(experts)
    by_block = (_pieces(rows, block[0]), _pieces(columns, block[1]))
    shapes = {
        (*experts, *by_block): (*single, *block),
        (*experts, by_block[0], 1, by_block[1], 1): (*single, *block),  # ModelOpt
        (*experts, rows): (*single, 1, columns),
        (*experts, rows, 1): (*single, 1, columns),
    }
    shapes.setdefault((*experts, 1, rows), (*single, 1, columns))
    if experts:
        each = (*single, rows, columns)
        shapes |= {tuple(experts): each, (*experts, 1): each, (*experts, 1, 1): each}
        if rows % 2 == 0:  # transformers: gate and up of each expert have a scale each
            shapes.setdefault((*experts, 2, 1), (*single, rows // 2, columns))
    return shapes.get(scale)


def _owner(scale: str) -> str:
    """Return the name of the weight that a scale is named after."""
    return scale.removesuffix(next(end for end in _SUFFIXES if scale.endswith(end)))


def _fault_of_owner(name: str, owner: str, entries: Mapping[str, Entry]) -> list[str]:
    if owner not in entries:
        return [f"{name} is a scale without its weight, {owner}"]
    if entries[owner].dtype not in EIGHT_BIT:
        dtype, right = _NAMES[entries[owner].dtype], " or ".join(_NAMES[d] for d in EIGHT_BIT)
        return [f"{name} is the scale of {owner}, which is {dtype}: expected {right}"]
    return []


def _wrong_number(name: str, dtype: torch.dtype, names: list[str]) -> str:
    if names:
        return f"{name} has two scales, {' and '.join(names)}: expected one"
    return (
        f"{name} is {_NAMES[dtype]} without its scale, {' or '.join(name + s for s in _SUFFIXES)}"
    )


def _wrong_shape(name: str, weight: Shape, scale_name: str, scale: Shape, block: Shape) -> str:
    if len(weight) < 2:
        return f"{name} of shape {list(weight)} has a scale: expected a matrix"
    *experts, rows, columns = weight
    blocks = [*experts, _pieces(rows, block[0]), _pieces(columns, block[1])]
    return (
        f"{scale_name} is {list(scale)}: for {name} of {list(weight)} expected one value, "
        f"{[*experts, rows, 1]} by row, or {blocks} by blocks of {block[0]} x {block[1]}"
    )


def _wrong_dtype(name: str, dtype: torch.dtype) -> str:
    right = ", ".join(_NAMES[each] for each in _SCALE_DTYPES)
    return f"{name} is {_NAMES[dtype]}: expected one of {right}"


def _pieces(size: int, block: int) -> int:
    return -(-size // block)
