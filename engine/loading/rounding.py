"""Rounding of matrices to 8 bits as they are loaded."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.engine.loading.eight_bit_part import EightBitPart
from baton.engine.loading.weight_part import WHOLE, WeightPart
from baton.engine.loading.weights import Shape, WeightSource
from baton.kernels.eight_bit_weight import FP8, GROUP

_LARGEST = {FP8: 448.0, torch.int8: 127.0}
_SLICE = 1 << 20  # values that are rounded at once
# Modules whose few rows decide how much of a state or of an expert's answer counts: the gates and
# decays of linear attention, of Qwen's and of Kimi's layers, and the gate of a shared expert.
# Routers need no entry: layers ask for those in a dtype of their own.
_GATES = frozenset(
    (
        *("in_proj_ba", "in_proj_b", "in_proj_a"),
        *("b_proj", "f_a_proj", "f_b_proj", "g_a_proj", "g_b_proj"),
        "shared_expert_gate",
    )
)


@dataclass(frozen=True)
class Rounding:
    """The rounding of a model's matrices at load: to the nearest number times the scale of its
    row, with which the row's largest magnitude is the largest number.

    dtype: of the numbers, float8_e4m3fn or int8
    vocabulary: true if the embedding and the head are rounded too
    """

    dtype: torch.dtype
    vocabulary: bool = False

    def takes(self, name: str) -> bool:
        """Return true for a matrix that is rounded. name: of its tensor"""
        return name.removesuffix(".weight").rpartition(".")[2] not in _GATES

    def part(
        self, source: WeightSource, name: str, shape: Shape, part: WeightPart = WHOLE
    ) -> EightBitPart | None:
        """Return `part` of a matrix, or of a stack of matrices, rounded; None for what stays as it
        is, as a matrix with a NaN or an infinity does.

        Scales are those of whole rows, so that the numbers are the same on any number of ranks.
        shape: of the whole tensor
        """
        if not self.takes(name):
            return None
        own = source.tensor(name, shape, part)
        if not own.numel():
            return None
        group = -(-own.shape[-1] // GROUP) * GROUP
        by_row = (*own.shape[:-1], 1)
        if own.is_meta:
            values = torch.empty(own.shape, dtype=self.dtype, device="meta")
            return EightBitPart(values, torch.empty(by_row, device="meta"), group)
        divided = part.spans and part.dim == len(shape) - 1
        scales = self._scales(source.tensor(name, shape) if divided else own)
        if not scales.isfinite().all():
            return None
        return EightBitPart(self._numbers(own, scales), scales.view(by_row), group)

    def of(self, matrix: Tensor) -> EightBitPart:
        """Round a matrix of finite numbers, [O, K]."""
        group = -(-matrix.shape[-1] // GROUP) * GROUP
        scales = self._scales(matrix)
        return EightBitPart(self._numbers(matrix, scales), scales[:, None], group)

    def _scales(self, whole: Tensor) -> Tensor:
        """Return the scale of each row: [rows of all matrices] float32."""
        least = torch.finfo(torch.float32).tiny
        largest = [piece.abs().amax(dim=-1) for piece in _pieces(whole)]
        return (torch.cat(largest) / _LARGEST[self.dtype]).clamp_(min=least)

    def _numbers(self, own: Tensor, scales: Tensor) -> Tensor:
        """Return the 8-bit numbers of the matrices. scales: as of `_scales`"""
        numbers = torch.empty(own.shape, dtype=self.dtype)
        by_row = numbers.view(-1, own.shape[-1])
        first = 0
        for piece in _pieces(own):
            last = first + piece.shape[0]
            exact = piece / scales[first:last, None]
            by_row[first:last] = exact.round_() if self.dtype is torch.int8 else exact
            first = last
        return numbers


def _pieces(matrices: Tensor) -> Iterator[Tensor]:
    """Yield the rows of all matrices, some at a time: [rows, columns] float32."""
    step = max(1, _SLICE // matrices.shape[-1])
    for matrix in [matrices] if matrices.dim() == 2 else matrices.flatten(0, -3).unbind():
        for rows in torch.split(matrix, step):
            yield rows.float()
