"""Products with experts of 8-bit floats on a GPU, in blocks of tokens of one expert."""

import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.eight_bit_weight import WORDS, Fp8Words
from baton.kernels.triton.arithmetic import narrow, sigmoid
from baton.kernels.triton.fp8_linear import ONE, add_words, load_inputs, scales_of
from baton.kernels.triton.kernel import kernel
from baton.kernels.triton.moe_routing import ExpertAssignment

NOTHING = tl.constexpr(0)
SWIGLU = tl.constexpr(1)
RELU2 = tl.constexpr(2)

MOST_ROWS = 16
"""The most rows of a block of pairs: with more, programs have met misaligned addresses on an H200.
The cause is not known."""
_TILE = 64  # outputs of one program: the side that Hopper's tensor cores read from registers
_BLOCK = tl.constexpr(WORDS)


def multiply_fp8(
    x: Tensor,
    weight: Fp8Words,
    out: Tensor,
    assigned: ExpertAssignment,
    per_row: int,
    activation: int,
) -> None:
    """Compute out[pair] = activation(weight[expert] x[pair // per_row])

    x: [pairs / per_row, H] float, may be strided over rows; weight: [E, I, H], or [E, 2 I, H] where
    the first half is a gate; out: [pairs, I], contiguous
    """
    pairs, width = out.shape
    words, scales = weight.words, weight.scales
    tiles = triton.cdiv(width, _TILE)
    _multiply[(assigned.experts.shape[0] * tiles,)](
        x, words, scales, out, assigned.pairs, assigned.experts,
        x.stride(0), words.stride(0), words.stride(1), scales.stride(0), pairs, width, weight.inner,
        scales.shape[2], weight.group,
        PER_ROW=per_row, ACTIVATION=activation, SCALES=scales_of(weight), ROWS=assigned.rows,
        TILE=_TILE, num_warps=4, num_stages=4,
    )  # fmt: skip


@kernel
def _multiply(
    x,
    words,
    scales,
    out,
    pairs,
    experts,
    x_stride,
    expert_words,
    row_words,
    expert_scales,
    total,
    width,
    inner,
    groups,
    group,
    PER_ROW: tl.constexpr,
    ACTIVATION: tl.constexpr,
    SCALES: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Multiply one block of pairs, for some outputs. The outputs of a block follow each other, so
    that its inputs stay in the cache."""
    tiles = tl.cdiv(width, TILE)
    part = tl.program_id(0) // tiles
    expert = tl.load(experts + part).to(tl.int64)
    if expert >= 0:
        pair = tl.load(pairs + part.to(tl.int64) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        real = pair < total
        output = tl.program_id(0) % tiles * TILE + tl.arange(0, TILE)
        in_o = output < width
        j = tl.arange(0, _BLOCK)
        source = x + (pair // PER_ROW)[None, :] * x_stride + j[:, None]
        matrix = words + expert * expert_words + output.to(tl.int64)[:, None] * row_words + j
        scale = scales + expert * expert_scales + output * groups
        gate = tl.zeros((TILE, ROWS), tl.float32)
        up = tl.zeros((TILE, ROWS), tl.float32)
        for at in range(0, inner, 4 * _BLOCK):
            inputs = load_inputs(source, at, inner, real)
            four = tl.load(matrix + at // 4, mask=in_o[:, None], other=0)
            if ACTIVATION == SWIGLU:
                gate = add_words(gate, four, inputs, scale, at, inner, in_o, group, SCALES)
                four = tl.load(matrix + width * row_words + at // 4, mask=in_o[:, None], other=0)
                second = scale + width * groups
                up = add_words(up, four, inputs, second, at, inner, in_o, group, SCALES)
            else:
                up = add_words(up, four, inputs, scale, at, inner, in_o, group, SCALES)
        if SCALES == ONE:
            own = tl.load(scale, mask=in_o, other=0.0)[:, None]
            if ACTIVATION == SWIGLU:
                gate *= own
                own = tl.load(scale + width * groups, mask=in_o, other=0.0)[:, None]
            up *= own
        if ACTIVATION == SWIGLU:
            up = gate * sigmoid(gate) * up
        if ACTIVATION == RELU2:
            up = tl.maximum(up, 0.0)
            up = up * up
        target = out + pair[None, :] * width + output[:, None]
        tl.store(target, narrow(up, out.dtype.element_ty), mask=real[None, :] & in_o[:, None])
