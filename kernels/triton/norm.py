"""RMS norms on a GPU; see baton.kernels.norm."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.triton.arithmetic import narrow, sigmoid
from baton.kernels.triton.kernel import kernel
from baton.kernels.triton.shapes import block, packed

# Channels of one program that normalises groups, unless one group has more.
_TOGETHER = 1024


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Implement `Kernels.rms_norm`, for x of two or three dimensions, strided over its first."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    width = x.shape[-1]
    per_row = x.shape[1] if x.dim() == 3 else 1
    if out.numel():
        _rms_norm[(x.shape[0], per_row)](
            packed(x), weight, out, eps, x.stride(0), per_row, width,
            weight.numel() // width, BLOCK=block(width),
            num_warps=_warps(width),
        )  # fmt: skip
    return out


def gated_norm(
    y: Tensor,
    z: Tensor,
    weight: Tensor | None,
    eps: float,
    group_size: int,
    norm_before_gate: bool,
    silu: bool = True,
) -> Tensor:
    """Compute baton.kernels.norm.gated_rms_norm, or its variants without a norm or with another
    gate.

    y, z:   [T, C] float, may be strided over T
    weight: [C] float32, or [group_size]: the same for every group; None: only the gate
    silu:   the gate is silu(z), else sigmoid(z)
    returns [T, C], dtype of y
    """
    tokens, channels = y.shape
    out = y.new_empty((tokens, channels))
    if out.numel():
        width = block(group_size)
        together = max(1, _TOGETHER // width)
        _gated_norm[(tokens, triton.cdiv(channels // group_size, together))](
            packed(y), packed(z), weight, out, eps, y.stride(0), z.stride(0), channels,
            group_size, SHARED=weight is not None and weight.shape[0] != channels,
            BEFORE=norm_before_gate, SILU=silu, GROUPS=together, BLOCK=width,
            num_warps=_warps(together * width),
        )  # fmt: skip
    return out


def _warps(width: int) -> int:
    """Return the warps for eight values a thread, or more where rows are very long."""
    return min(16, max(1, block(width) // 256))


@kernel
def _rms_norm(
    x,
    weight,
    out,
    eps,
    x_stride,
    per_row,
    width,
    weights,
    BLOCK: tl.constexpr,
):
    """Normalise one run of `width` channels; `weights` of them have a weight each, in turn."""
    row, place = tl.program_id(0).to(tl.int64), tl.program_id(1)
    c = tl.arange(0, BLOCK)
    inside = c < width
    value = tl.load(x + row * x_stride + place * width + c, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(weight + (place % weights) * width + c, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(value * value, axis=0) / width
    normed = narrow(value * tl.rsqrt(mean + eps) * scale, out.dtype.element_ty)
    tl.store(out + (row * per_row + place) * width + c, normed, mask=inside)


@kernel
def _gated_norm(
    y,
    z,
    weight,
    out,
    eps,
    y_stride,
    z_stride,
    channels,
    group_size,
    SHARED: tl.constexpr,
    BEFORE: tl.constexpr,
    SILU: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Gate and normalise some groups of one token."""
    row = tl.program_id(0).to(tl.int64)
    first = (tl.program_id(1) * GROUPS + tl.arange(0, GROUPS))[:, None] * group_size
    within = tl.arange(0, BLOCK)[None, :]
    c = first + within
    inside = (first < channels) & (within < group_size)
    value = tl.load(y + row * y_stride + c, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(z + row * z_stride + c, mask=inside, other=0.0).to(tl.float32)
    gate = sigmoid(gate) * gate if SILU else sigmoid(gate)
    if not BEFORE:
        value *= gate
    if weight is not None:
        mean = tl.sum(value * value, axis=1, keep_dims=True) / group_size
        scale = tl.load(weight + (within if SHARED else c), mask=inside, other=0.0)
        value *= tl.rsqrt(mean + eps) * scale.to(tl.float32)
    if BEFORE:
        value *= gate
    tl.store(out + row * channels + c, narrow(value, out.dtype.element_ty), mask=inside)
