"""Products with a matrix of 8-bit floats on a GPU; see baton.kernels.eight_bit_weight.

Few rows: a program reads a tile of the matrix and widens it in registers, so that the matrix is
read once, in 8 bits. Many rows: pieces of the matrix are widened in memory, and torch multiplies
them; a product of many rows takes so much longer than that.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.eight_bit_weight import WORDS, Fp8Words
from baton.kernels.linear import JoinedWeight, Matrix
from baton.kernels.torch_kernels import TorchKernels
from baton.kernels.triton.arithmetic import dot, dot_added, four_e4m3, from_e4m3, narrow
from baton.kernels.triton.kernel import kernel
from baton.kernels.triton.shapes import SMALLEST_DOT, block, packed, processors

MOST_ROWS = 128
"""Rows up to which the matrix is read in 8 bits."""
_TILE = 64  # outputs of one program: the side that Hopper's tensor cores read from registers
_ROWS = 64  # of one program, at most
_PROGRAMS = 4  # of each multiprocessor, which hide the time of loads
_SUMMED = 512  # outputs of one row that one program sums
_PIECE = 64 << 20  # values that are widened at once
_WIDENED = 2048  # values of one row that one program widens
_BLOCK = tl.constexpr(WORDS)
# The scales of a row: one; one for a multiple of the inputs of a block of words; or more.
ONE = tl.constexpr(0)
APART = tl.constexpr(1)
CLOSE = tl.constexpr(2)


def scales_of(weight: Fp8Words) -> int:
    """Return which of the three holds for a matrix."""
    if weight.scales.shape[-1] == 1:
        return int(ONE.value)
    return int(CLOSE.value if weight.group % (4 * WORDS) else APART.value)


def linear(x: Tensor, weight: Matrix, bias: Tensor | None = None) -> Tensor:
    """Implement `Kernels.linear`; torch multiplies what is not in FP8."""
    if not isinstance(weight, Fp8Words | JoinedWeight):
        return TorchKernels.linear(x, weight, bias)
    y = x.new_empty((x.shape[0], weight.shape[0]))
    first = 0
    for part in weight.parts if isinstance(weight, JoinedWeight) else (weight,):
        own = slice(first, first + part.shape[0])
        added = None if bias is None else bias[own]
        if not isinstance(part, Fp8Words):
            y[:, own] = TorchKernels.linear(x, part, added)
        elif x.shape[0] <= MOST_ROWS:
            _multiply_few(packed(x), part, added, y[:, own])
        else:
            _multiply_widened(x, part, added, y[:, own])
        first = own.stop
    return y


def _multiply_few(x: Tensor, weight: Fp8Words, bias: Tensor | None, y: Tensor) -> None:
    """Write the product to y [T, O], whose rows may lie apart. The inputs are divided among
    programs where the outputs are too few for a GPU."""
    tokens, inner = x.shape
    if not tokens:
        return
    outputs, groups = weight.scales.shape
    step = 4 * WORDS
    rows = min(_ROWS, block(tokens, SMALLEST_DOT))
    tiles = triton.cdiv(outputs, _TILE)
    wanted = triton.cdiv(_PROGRAMS * processors(x.device), tiles)
    span = triton.cdiv(triton.cdiv(inner, step), wanted) * step
    parts = triton.cdiv(inner, span)
    whole = parts == 1
    sums = y if whole else y.new_empty((parts, tokens, outputs), dtype=torch.float32)
    _multiply[(tiles, triton.cdiv(tokens, rows), parts)](
        x, weight.words, weight.scales, bias if whole else None, sums,
        x.stride(0), weight.words.stride(0), sums.stride(-2), tokens, outputs, inner, span,
        groups, weight.group, SCALES=scales_of(weight), TILE=_TILE, ROWS=rows,
        num_warps=4, num_stages=3,
    )  # fmt: skip
    if not whole:
        _sum[(triton.cdiv(outputs, _SUMMED), tokens)](
            sums, bias, y, y.stride(0), tokens, outputs, parts, BLOCK=_SUMMED, num_warps=4
        )


def _multiply_widened(x: Tensor, weight: Fp8Words, bias: Tensor | None, y: Tensor) -> None:
    outputs, inner = weight.shape
    rows = max(_TILE, _PIECE // inner // _TILE * _TILE)
    for first in range(0, outputs, rows):
        some = slice(first, min(outputs, first + rows))
        wide = widened(weight, some, x.dtype)
        if bias is None:
            torch.mm(x, wide.T, out=y[:, some])
        else:
            y[:, some] = F.linear(x, wide, bias[some])


def widened(weight: Fp8Words, some: slice, dtype: torch.dtype) -> Tensor:
    """Return some rows of a matrix, in `dtype`: [rows, K]"""
    words, scales = weight.words[some], weight.scales[some]
    wide = torch.empty((words.shape[0], weight.inner), dtype=dtype, device=words.device)
    _widen[(words.shape[0], triton.cdiv(weight.inner, _WIDENED))](
        words, scales, wide, words.stride(0), weight.inner, scales.shape[1], weight.group,
        BLOCK=_WIDENED, num_warps=4,
    )  # fmt: skip
    return wide


def widened_experts(weight: Fp8Words) -> Iterator[tuple[slice, Tensor]]:
    """Yield the matrices of some experts after those of others, with their places: [experts, O, K]
    in the activations' dtype."""
    experts, outputs, inner = weight.shape
    rows = Fp8Words(
        weight.words.flatten(0, 1), weight.scales.flatten(0, 1), weight.group, inner, weight.dtype
    )
    at_once = max(1, _PIECE // (outputs * inner))
    for first in range(0, experts, at_once):
        some = slice(first, min(experts, first + at_once))
        own = slice(some.start * outputs, some.stop * outputs)
        yield some, widened(rows, own, weight.dtype).view(-1, outputs, inner)


@triton.jit
def load_inputs(source, at, inner, in_r):
    """Load the inputs that a block of words meets, from `at` on: four blocks [_BLOCK, rows].

    source: [_BLOCK, rows] pointers to the first inputs of each row
    """
    k = (at + tl.arange(0, _BLOCK))[:, None]
    in_r = in_r[None, :]
    return (
        tl.load(source + at, mask=(k < inner) & in_r, other=0.0),
        tl.load(source + at + _BLOCK, mask=(k + _BLOCK < inner) & in_r, other=0.0),
        tl.load(source + at + 2 * _BLOCK, mask=(k + 2 * _BLOCK < inner) & in_r, other=0.0),
        tl.load(source + at + 3 * _BLOCK, mask=(k + 3 * _BLOCK < inner) & in_r, other=0.0),
    )


@triton.jit
def add_words(total, words, inputs, scale, at, inner, in_o, group, SCALES: tl.constexpr):
    """Add to total [outputs, rows] the product of a block of words [outputs, _BLOCK] and inputs of
    `load_inputs`, with its scales but for the one of a whole row.

    The matrix is the left operand, which tensor cores read from registers. scale: pointers to the
    first of each row's scales
    """
    values = four_e4m3(words, inputs[0].dtype)
    if SCALES == ONE:
        for part in tl.static_range(4):
            total = dot_added(values[part], inputs[part], total)
    elif SCALES == APART:
        product = dot(values[0], inputs[0])
        for part in tl.static_range(1, 4):
            product = dot_added(values[part], inputs[part], product)
        total += product * tl.load(scale + at // group, mask=in_o, other=0.0)[:, None]
    else:
        for part in tl.static_range(4):
            begin = at + part * _BLOCK
            own = tl.load(scale + begin // group, mask=in_o & (begin < inner), other=0.0)
            total += dot(values[part], inputs[part]) * own[:, None]
    return total


@kernel
def _multiply(
    x,
    words,
    scales,
    bias,
    out,
    x_stride,
    row_words,
    out_stride,
    tokens,
    outputs,
    inner,
    span,
    groups,
    group,
    SCALES: tl.constexpr,
    TILE: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Multiply some outputs of some rows, over `span` inputs: out [parts, tokens, outputs]."""
    output = tl.program_id(0) * TILE + tl.arange(0, TILE)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    in_o, in_r = output < outputs, row < tokens
    first = tl.program_id(2) * span
    j = tl.arange(0, _BLOCK)
    matrix = words + output.to(tl.int64)[:, None] * row_words + j[None, :]
    source = x + row.to(tl.int64)[None, :] * x_stride + j[:, None]
    scale = scales + output * groups
    total = tl.zeros((TILE, ROWS), tl.float32)
    for at in range(first, tl.minimum(first + span, inner), 4 * _BLOCK):
        four = tl.load(matrix + at // 4, mask=in_o[:, None], other=0)
        inputs = load_inputs(source, at, inner, in_r)
        total = add_words(total, four, inputs, scale, at, inner, in_o, group, SCALES)
    if SCALES == ONE:
        total *= tl.load(scale, mask=in_o, other=0.0)[:, None]
    if bias is not None:
        total += tl.load(bias + output, mask=in_o, other=0.0).to(tl.float32)[:, None]
    part = tl.program_id(2).to(tl.int64) * tokens * outputs
    target = out + part + row.to(tl.int64)[None, :] * out_stride + output[:, None]
    tl.store(target, narrow(total, out.dtype.element_ty), mask=in_o[:, None] & in_r[None, :])


@kernel
def _sum(sums, bias, out, out_stride, tokens, outputs, parts, BLOCK: tl.constexpr):
    """Sum the parts of some outputs of one row, in their order."""
    row = tl.program_id(1).to(tl.int64)
    output = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = output < outputs
    total = tl.zeros((BLOCK,), tl.float32)
    for part in range(parts):
        place = (part * tokens + row) * outputs + output
        total += tl.load(sums + place, mask=inside, other=0.0)
    if bias is not None:
        total += tl.load(bias + output, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + output, narrow(total, out.dtype.element_ty), mask=inside)


@kernel
def _widen(words, scales, out, row_words, inner, groups, group, BLOCK: tl.constexpr):
    """Multiply some values of one row by their scales."""
    row = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = k < inner
    place = k // (4 * _BLOCK) * _BLOCK + k % _BLOCK
    word = tl.load(words + row * row_words + place, mask=inside, other=0)
    value = from_e4m3(word >> (k // _BLOCK % 4 * 8))
    scale = tl.load(scales + row * groups + k // group, mask=inside, other=0.0)
    tl.store(out + row * inner + k, narrow(value * scale, out.dtype.element_ty), mask=inside)
