"""The experts' feed-forward on a GPU, in blocks of tokens of one expert; see baton.kernels.moe."""

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton.kernels import moe as torch_moe
from baton.kernels.eight_bit_weight import Fp8Words
from baton.kernels.linear import ExpertWeight
from baton.kernels.triton.arithmetic import dot, narrow, sigmoid
from baton.kernels.triton.fp8_experts import MOST_ROWS, NOTHING, RELU2, SWIGLU, multiply_fp8
from baton.kernels.triton.fp8_linear import widened_experts
from baton.kernels.triton.kernel import kernel
from baton.kernels.triton.moe_routing import ExpertAssignment, assign
from baton.kernels.triton.shapes import SMALLEST_DOT, block, packed

_WIDENED_ROWS = 64
"""The rows of a block of pairs from which experts in FP8 are widened first: their products take
longer than that, and would widen each weight once for every few rows."""
_COMBINED = 1024  # channels of one token that one program sums


def experts_swiglu(
    x: Tensor, weights: Tensor, experts: Tensor, w_in: ExpertWeight, w_out: ExpertWeight
) -> Tensor:
    """Implement `Kernels.experts_swiglu`; what is neither plain nor of `Fp8Words` goes through
    torch's products."""
    if not isinstance(w_in, Tensor | Fp8Words) or not isinstance(w_out, Tensor | Fp8Words):
        return torch_moe.experts_swiglu(x, weights, experts, w_in, w_out)
    return _through_experts(x, weights, experts, w_in, w_out, SWIGLU.value)


def experts_relu2(
    x: Tensor, weights: Tensor, experts: Tensor, w_in: ExpertWeight, w_out: ExpertWeight
) -> Tensor:
    """Implement `Kernels.experts_relu2`; what is neither plain nor of `Fp8Words` goes through
    torch's products."""
    if not isinstance(w_in, Tensor | Fp8Words) or not isinstance(w_out, Tensor | Fp8Words):
        return torch_moe.experts_relu2(x, weights, experts, w_in, w_out)
    return _through_experts(x, weights, experts, w_in, w_out, RELU2.value)


def _through_experts(
    x: Tensor,
    weights: Tensor,
    experts: Tensor,
    w_in: Tensor | Fp8Words,
    w_out: Tensor | Fp8Words,
    activation: int,
) -> Tensor:
    tokens, hidden = x.shape
    top_k = experts.shape[1]
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if not tokens:
        return out
    count, _, inner_width = w_out.shape
    rows = _block_rows(tokens * top_k, count)
    in_fp8 = isinstance(w_in, Fp8Words) or isinstance(w_out, Fp8Words)
    if in_fp8 and rows < _WIDENED_ROWS:
        rows = min(rows, MOST_ROWS)
    assigned = assign(experts, count, rows)
    inner = x.new_empty((tokens * top_k, inner_width), dtype=w_in.dtype)
    outer = x.new_empty((tokens * top_k, hidden), dtype=w_out.dtype)
    _product(packed(x), w_in, inner, assigned, top_k, activation)
    _product(inner, w_out, outer, assigned, 1, NOTHING.value)
    _combine[(tokens, triton.cdiv(hidden, _COMBINED))](
        outer, weights, out, hidden, TOP_K=top_k, BLOCK=_COMBINED, num_warps=4
    )
    return out


def _block_rows(pairs: int, experts: int) -> int:
    """Return the average number of an expert's pairs: a block that is half empty wastes
    products."""
    return min(128, block(pairs // experts, SMALLEST_DOT)) if pairs >= experts else SMALLEST_DOT


@dataclass(frozen=True)
class _Tiles:
    """The sizes of a program of a product, beside its rows."""

    columns: int
    inner: int  # channels of one product
    warps: int
    stages: int


def _tiles(rows: int, wide: bool) -> _Tiles:
    """Return the tiles of blocks of `rows`, in float32 or in bfloat16."""
    if wide:
        return _Tiles(32, 32, 8 if rows >= 128 else 4, 3)
    return _Tiles(128, 64, 8, 3) if rows >= 128 else _Tiles(64, 64, 4, 3)


def _product(
    x: Tensor,
    weight: Tensor | Fp8Words,
    out: Tensor,
    assigned: ExpertAssignment,
    per_row: int,
    activation: int,
) -> None:
    """Compute out[pair] = activation(weight[expert] x[pair // per_row])

    x: [pairs / per_row, H] float, may be strided over rows; weight: [E, I, H], or [E, 2 I, H] where
    the first half is a gate; out: [pairs, I], contiguous, dtype of weight
    """
    if isinstance(weight, Fp8Words):
        if assigned.rows < _WIDENED_ROWS:
            multiply_fp8(x, weight, out, assigned, per_row, activation)
            return
        for some, wide in widened_experts(weight):
            inside = (assigned.experts >= some.start) & (assigned.experts < some.stop)
            own = torch.where(inside, assigned.experts - some.start, -1)
            _product(x, wide, out, replace(assigned, experts=own), per_row, activation)
        return
    pairs, width = out.shape
    tiles = _tiles(assigned.rows, weight.dtype == torch.float32)
    _multiply[(assigned.experts.shape[0] * triton.cdiv(width, tiles.columns),)](
        x, weight, out, assigned.pairs, assigned.experts,
        x.stride(0), weight.stride(0), weight.stride(1), pairs, width, x.shape[1],
        PER_ROW=per_row, ACTIVATION=activation, ROWS=assigned.rows, COLUMNS=tiles.columns,
        INNER=tiles.inner, num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip


@kernel
def _multiply(
    x,
    weight,
    out,
    pairs,
    experts,
    x_stride,
    expert_stride,
    weight_stride,
    total,
    width,
    inner,
    PER_ROW: tl.constexpr,
    ACTIVATION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    """Multiply one block of pairs, for some columns.

    The columns of a block follow each other: its inputs, which are many, are then read once, and
    the weights of its expert stay in the cache.
    """
    columns = tl.cdiv(width, COLUMNS)
    part = tl.program_id(0) // columns
    expert = tl.load(experts + part).to(tl.int64)
    if expert >= 0:
        pair = tl.load(pairs + part.to(tl.int64) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        real = pair < total
        column = tl.program_id(0) % columns * COLUMNS + tl.arange(0, COLUMNS)
        in_c = column < width
        source = x + (pair // PER_ROW)[:, None] * x_stride
        matrix = weight + expert * expert_stride + column.to(tl.int64)[None, :] * weight_stride
        gate = tl.zeros((ROWS, COLUMNS), tl.float32)
        up = tl.zeros((ROWS, COLUMNS), tl.float32)
        for first in range(0, inner, INNER):
            h = first + tl.arange(0, INNER)
            in_h = h < inner
            values = tl.load(source + h[None, :], mask=real[:, None] & in_h[None, :], other=0.0)
            values = values.to(weight.dtype.element_ty)
            mask = in_h[:, None] & in_c[None, :]
            taken = tl.load(matrix + h[:, None], mask=mask, other=0.0)
            if ACTIVATION == SWIGLU:
                gate += dot(values, taken)
                taken = tl.load(matrix + width * weight_stride + h[:, None], mask=mask, other=0.0)
            up += dot(values, taken)
        if ACTIVATION == SWIGLU:
            up = gate * sigmoid(gate) * up
        if ACTIVATION == RELU2:
            up = tl.maximum(up, 0.0)
            up = up * up
        target = out + pair[:, None] * width + column[None, :]
        stored = real[:, None] & in_c[None, :]
        tl.store(target, narrow(up, out.dtype.element_ty), mask=stored)


@kernel
def _combine(outer, weights, out, hidden, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    """Sum some channels of one token over its experts, in their own order."""
    token = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = c < hidden
    total = tl.zeros((BLOCK,), tl.float32)
    for k in range(TOP_K):
        pair = token * TOP_K + k
        value = tl.load(outer + pair * hidden + c, mask=inside, other=0.0).to(tl.float32)
        total += value * tl.load(weights + pair)
    tl.store(out + token * hidden + c, narrow(total, out.dtype.element_ty), mask=inside)
