"""Matrices of 8-bit floats, or of 8-bit integers with scales, that products expand piece by
piece."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from baton.kernels import huge_pages

FP8 = torch.float8_e4m3fn
PANEL = 16  # rows side by side
GROUP = 32  # inputs of which every scale is a multiple
WORDS = 32
"""The words of a block of 4 * WORDS inputs: word j holds inputs j, j + WORDS, and so on."""
# Rows, a multiple of PANEL, that are packed at once where they must be padded.
_PADDED_ROWS = 256


@dataclass(frozen=True)
class EightBitWeight:
    """A matrix [O, K] of E4M3 floats or of integers as the native library multiplies it:
    PackedWeight's order of bytes, and scales in the same order. Its products have the bits of
    those of `dense`, packed.

    values: [ceil(O / 16), ceil(K / d), 16, d] uint8, the bits of the numbers, d as in PackedWeight
            of `dtype`; no NaN
    scales: [ceil(O / 16), ceil(K / group), 16] float32
    group:  inputs that share a scale, a multiple of GROUP
    dtype:  of the products, to which values times scales are rounded
    stored: dtype of the numbers: float8_e4m3fn or int8
    """

    values: Tensor
    scales: Tensor
    group: int
    shape: torch.Size
    dtype: torch.dtype
    stored: torch.dtype = FP8

    @property
    def integers(self) -> bool:
        return self.stored is torch.int8

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.scales.nbytes

    @staticmethod
    def nbytes_of(rows: int, columns: int, groups: int, dtype: torch.dtype) -> int:
        """Return the bytes of a matrix in this form. groups: scales of a row"""
        depth = 4 // dtype.itemsize
        padded = -(-rows // PANEL) * PANEL
        return padded * (-(-columns // depth) * depth + groups * torch.float32.itemsize)

    @staticmethod
    def of(values: Tensor, scales: Tensor, group: int, dtype: torch.dtype) -> "EightBitWeight":
        """Pack a matrix.

        values: [O, K] float8_e4m3fn without NaN, or int8, perhaps mapped from a file
        scales: [O, ceil(K / group)] float32
        dtype:  bfloat16 or float32
        """
        rows, columns = values.shape
        depth = 4 // dtype.itemsize
        panels, steps = -(-rows // PANEL), -(-columns // depth)
        packed = huge_pages.empty((panels, steps, PANEL, depth), torch.uint8, values.device)
        # A step as one value: torch turns those over faster than pairs of bytes.
        step = {1: torch.uint8, 2: torch.int16}[depth]
        turned, stored = packed.view(step)[..., 0], values.view(torch.uint8)
        if not rows % PANEL and not columns % depth and stored.is_contiguous():
            turned.copy_(stored.view(step).view(panels, PANEL, steps).transpose(1, 2))
        else:
            block = torch.zeros(_PADDED_ROWS, steps * depth, dtype=torch.uint8)
            for first in range(0, rows, _PADDED_ROWS):
                part = stored[first : first + _PADDED_ROWS]
                block[: part.shape[0], :columns] = part
                block[part.shape[0] :] = 0
                filled = turned[first // PANEL : (first + _PADDED_ROWS) // PANEL]
                words = block.view(step).view(-1, PANEL, steps)
                filled.copy_(words[: filled.shape[0]].transpose(1, 2))
        by_panel = torch.zeros(panels * PANEL, scales.shape[1])
        by_panel[:rows] = scales
        by_panel = by_panel.view(panels, PANEL, -1).transpose(1, 2).contiguous()
        return EightBitWeight(packed, by_panel, group, values.shape, dtype, values.dtype)

    def dense(self) -> Tensor:
        """Return the matrix as [O, K], in the products' dtype."""
        rows, columns = self.shape
        numbers = self.values.transpose(1, 2).flatten(2).flatten(0, 1)[:rows, :columns]
        scales = self.scales.transpose(1, 2).flatten(0, 1)[:rows]
        every = scales.repeat_interleave(self.group, 1)[:, :columns]
        exact = numbers.contiguous().view(self.stored).float() * every
        return exact.to(self.dtype)

    def rows(self, ids: Tensor) -> Tensor:
        """Return some rows of the matrix. ids: [T] int64 -> [T, K], in the products' dtype."""
        panels, lanes = ids // PANEL, ids % PANEL
        numbers = self.values[panels, :, lanes].flatten(1)[:, : self.shape[1]]
        every = self.scales[panels, :, lanes].repeat_interleave(self.group, 1)
        exact = numbers.contiguous().view(self.stored).float() * every[:, : self.shape[1]]
        return exact.to(self.dtype)


@dataclass(frozen=True)
class EightBitExperts:
    """A matrix an expert, [E, O, K], of E4M3 floats or of integers, row by row as the native
    library's experts have them. Their products have the bits of those of `dense`.

    values: [E, O, K] uint8, the bits of the numbers, no NaN
    scales: [E, O, ceil(K / group)] float32
    group:  inputs that share a scale, a multiple of GROUP
    dtype:  of the products, to which values times scales are rounded
    stored: dtype of the numbers: float8_e4m3fn or int8
    """

    values: Tensor
    scales: Tensor
    group: int
    dtype: torch.dtype
    stored: torch.dtype = FP8

    @property
    def integers(self) -> bool:
        return self.stored is torch.int8

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.scales.nbytes

    @property
    def shape(self) -> torch.Size:
        return self.values.shape

    @staticmethod
    def empty(
        shape: Sequence[int],
        group: int,
        dtype: torch.dtype,
        device: torch.device,
        stored: torch.dtype = FP8,
    ) -> "EightBitExperts":
        """Allocate matrices [E, O, K], for `put`."""
        *leading, columns = shape
        values = huge_pages.empty(shape, torch.uint8, device)
        scales = huge_pages.empty((*leading, -(-columns // group)), torch.float32, device)
        return EightBitExperts(values, scales, group, dtype, stored)

    def put(self, place: int | slice, values: Tensor, scales: Tensor) -> None:
        """Set the matrices of some experts: values in the dtype `stored`, scales as float32. On the
        meta device: nothing.
        """
        if not self.values.is_meta:
            self.values[place] = values.view(torch.uint8)
            self.scales[place] = scales

    def dense(self) -> Tensor:
        """Return the matrices as [E, O, K], in the products' dtype."""
        every = self.scales.repeat_interleave(self.group, 2)[..., : self.shape[2]]
        return (self.values.view(self.stored).float() * every).to(self.dtype)


@dataclass(frozen=True)
class Fp8Words:
    """A matrix [O, K] of E4M3 floats, or one an expert [E, O, K], as GPUs multiply it: the four
    numbers of a word meet inputs that lie `WORDS` apart, so that each of a word's bytes is of a
    block of neighbours. Sums of products are multiplied by the scales, not the weights.

    words:  [..., O, ceil(K / (4 WORDS)) * WORDS] int32, the first of a block in the lowest byte; no
            NaN, zeros behind K
    scales: [..., O, ceil(K / group)] float32
    group:  inputs that share a scale, a multiple of GROUP
    inner:  K
    dtype:  of the activations
    """

    words: Tensor
    scales: Tensor
    group: int
    inner: int
    dtype: torch.dtype

    @property
    def stored(self) -> torch.dtype:
        return FP8

    @property
    def nbytes(self) -> int:
        return self.words.nbytes + self.scales.nbytes

    @property
    def shape(self) -> torch.Size:
        return torch.Size((*self.words.shape[:-1], self.inner))

    @staticmethod
    def empty(
        shape: Sequence[int], group: int, dtype: torch.dtype, device: torch.device
    ) -> "Fp8Words":
        """Allocate a matrix [O, K], or matrices [E, O, K], for `put`."""
        *leading, inner = shape
        count = -(-inner // (4 * WORDS)) * WORDS
        words = torch.empty((*leading, count), dtype=torch.int32, device=device)
        scales = torch.empty((*leading, -(-inner // group)), device=device)
        return Fp8Words(words, scales, group, inner, dtype)

    def put(self, place: int | slice, values: Tensor, scales: Tensor) -> None:
        """Set some experts, or rows: values as float8_e4m3fn, scales as float32, on any device. On
        the meta device: nothing.
        """
        if self.words.is_meta:
            return
        bits = values.view(torch.uint8).to(self.words.device)
        bits = F.pad(bits, (0, 4 * self.words.shape[-1] - self.inner))
        apart = bits.view(*bits.shape[:-1], -1, 4, WORDS).transpose(-1, -2).contiguous()
        self.words[place] = apart.view(torch.int32).flatten(-3)
        self.scales[place] = scales.to(self.scales.device)

    def dense(self) -> Tensor:
        """Return the matrix or matrices, as [..., O, K], in the activations' dtype."""
        return self._expanded(self.words, self.scales)

    def rows(self, ids: Tensor) -> Tensor:
        """Return some rows of the matrix. ids: [T] int64 -> [T, K], in the activations' dtype."""
        return self._expanded(self.words[ids], self.scales[ids])

    def _expanded(self, words: Tensor, scales: Tensor) -> Tensor:
        bits = words.view(torch.uint8).view(*words.shape[:-1], -1, WORDS, 4)
        values = bits.transpose(-1, -2).flatten(-3).contiguous().view(torch.float8_e4m3fn).float()
        every = scales.repeat_interleave(self.group, -1)[..., : self.inner]
        return (values[..., : self.inner] * every).to(self.dtype)
