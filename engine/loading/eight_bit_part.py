"""Part of an 8-bit tensor as the file has it, for products that read 8 bits."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import gcd, prod

import torch
from torch import Tensor

from baton.engine.loading.weight_part import WHOLE, WeightPart
from baton.kernels.eight_bit_weight import GROUP

_NAN = 0x7F  # the bits of NaN, but for the sign
_PIECE = 256  # rows that are looked at together
_LAYOUTS = 64  # that are remembered: experts have the same ones


@dataclass(frozen=True)
class EightBitLayout:
    """The scales of part of a matrix, or of a stack of matrices: which of the whole tensor's belong
    to its rows and to the groups of its columns.

    rows, columns: blocks of the whole tensor: [rows of all matrices], [groups] int64
    group: columns that share a scale, a multiple of GROUP
    shape: of the part
    """

    rows: Tensor
    columns: Tensor
    group: int
    shape: tuple[int, ...]

    @staticmethod
    @lru_cache(_LAYOUTS)
    def of(
        shape: tuple[int, ...], blocks: tuple[int, ...], part: WeightPart
    ) -> "EightBitLayout | None":
        """Return the layout; None where it is no matrix, or where scales change between groups.

        shape, blocks: of the whole tensor, and its places along each dimension that share a scale
        """
        if len(shape) < 2:
            return None
        places = [
            torch.cat([torch.arange(span.start, span.stop) for span in part.spans])
            if part.spans and dim == part.dim
            else torch.arange(size)
            for dim, size in enumerate(shape)
        ]
        own = tuple(len(along) for along in places)
        if not prod(own):
            return None
        *leading, columns = places
        rows = torch.zeros(1, dtype=torch.int64)
        for along, size, block in zip(leading, shape, blocks, strict=False):
            rows = (rows[:, None] * -(-size // block) + along // block).flatten()
        by_column = columns // blocks[-1]
        changes = torch.nonzero(by_column[1:] != by_column[:-1]).flatten().add(1).tolist()
        whole = -(-len(columns) // GROUP) * GROUP
        group = gcd(*changes) if changes else whole
        if group % GROUP:
            return None
        return EightBitLayout(rows, by_column[::group], group, own)


@dataclass(frozen=True)
class EightBitPart:
    """8-bit numbers and their scales, or tensors of their shapes without data.

    values: [..., rows, columns] float8_e4m3fn without NaN, or int8
    scales: [..., rows, groups] float32
    group:  columns that share a scale, a multiple of GROUP
    """

    values: Tensor
    scales: Tensor
    group: int

    @staticmethod
    def declared(layout: EightBitLayout, dtype: torch.dtype) -> "EightBitPart":
        """Return a part without data. dtype: of the numbers"""
        values = torch.empty(layout.shape, dtype=dtype, device="meta")
        scales = torch.empty(*layout.shape[:-1], len(layout.columns), device="meta")
        return EightBitPart(values, scales, layout.group)

    @staticmethod
    def read(layout: EightBitLayout, values: Tensor, scales: Tensor) -> "EightBitPart | None":
        """Return a part; None where there is a NaN in it.

        scales: of the whole tensor, one a block: float32
        """
        matrices = [values] if values.dim() == 2 else values.flatten(0, -3).unbind()
        if values.dtype is torch.int8:
            matrices = []  # there is no NaN among integers
        for piece in (p for m in matrices for p in torch.split(m.view(torch.uint8), _PIECE)):
            if int((piece & _NAN).amax()) == _NAN:
                return None
        by_row = scales.flatten(0, -2).index_select(0, layout.rows)
        own = by_row.index_select(1, layout.columns).view(*layout.shape[:-1], -1)
        return EightBitPart(values, own, layout.group)

    def reordered(self, order: Callable[[Tensor], Tensor]) -> "EightBitPart":
        """Return the rows in another order. order: does so to any tensor [rows, ...]"""
        if self.values.is_meta:
            return self
        values = order(self.values.view(torch.uint8)).view(self.values.dtype)
        return EightBitPart(values, order(self.scales), self.group)

    @staticmethod
    def concat(parts: "list[EightBitPart]") -> "EightBitPart":
        """Return the rows of several matrices one after another, of one dtype."""
        if len(parts) == 1:
            return parts[0]
        columns = parts[0].values.shape[1]
        several = [part.group for part in parts if part.scales.shape[1] > 1]
        group = gcd(*several) if several else parts[0].group
        firsts = torch.arange(0, columns, group)
        if parts[0].values.is_meta:
            rows = sum(part.values.shape[0] for part in parts)
            scales = torch.empty(rows, len(firsts), device="meta")
            return EightBitPart(parts[0].values.new_empty(rows, columns), scales, group)
        values = torch.cat([part.values.view(torch.uint8) for part in parts])
        scales = torch.cat([part.scales[:, firsts // part.group] for part in parts])
        return EightBitPart(values.view(parts[0].values.dtype), scales, group)


class EightBitSource(ABC):
    """A source of weights that may hold 8-bit matrices, and stacks of them."""

    @abstractmethod
    def eight_bit(
        self, name: str, shape: tuple[int, ...], part: WeightPart = WHOLE
    ) -> EightBitPart | None:
        """Return `part` of an 8-bit tensor as it is; None where there is none of that name, or none
        that products could read so.

        shape: of the whole tensor
        """
        ...


def eight_bit_of(
    source: object, name: str, shape: tuple[int, ...], part: WeightPart = WHOLE
) -> EightBitPart | None:
    """Return what a source of weights has of an 8-bit tensor; None where it can have none."""
    return source.eight_bit(name, shape, part) if isinstance(source, EightBitSource) else None
