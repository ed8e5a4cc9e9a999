"""Rotary positions on a GPU; see baton.kernels.rope."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.triton.kernel import kernel
from baton.kernels.triton.shapes import block, packed

_HEADS = 8  # of one program


def apply_rope(x: Tensor, cache: Tensor, positions: Tensor) -> Tensor:
    """Implement `Kernels.apply_rope`, for x strided over tokens."""
    tokens, heads, width = x.shape
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if out.numel():
        _rotate[(tokens, triton.cdiv(heads, _HEADS))](
            packed(x), cache, positions, out, x.stride(0), heads, width, cache.shape[1],
            HEADS=_HEADS, BLOCK=block(width), num_warps=4,
        )  # fmt: skip
    return out


@kernel
def _rotate(
    x, cache, positions, out, x_stride, heads, width, rotary,
    HEADS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Rotate some heads of one token. Each channel reads its partner: half the reads come from the
    cache of the first level."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    c = tl.arange(0, BLOCK)
    half = rotary // 2
    first, second = c < half, (c >= half) & (c < rotary)
    partner = tl.where(first, c + half, tl.where(second, c - half, c))
    angle = cache + tl.load(positions + token) * rotary + tl.where(first, c, c - half)
    turned = first | second
    cos = tl.load(angle, mask=turned, other=1.0)
    sin = tl.load(angle + half, mask=turned, other=0.0)
    inside = (head < heads)[:, None] & (c < width)[None, :]
    own = x + token * x_stride + head[:, None] * width
    value = tl.load(own + c[None, :], mask=inside, other=0.0).to(tl.float32)
    other = tl.load(own + partner[None, :], mask=inside, other=0.0).to(tl.float32)
    rotated = value * cos[None, :] + tl.where(first, -other, other) * sin[None, :]
    target = out + (token * heads + head)[:, None] * width + c[None, :]
    tl.store(target, rotated, mask=inside)


def apply_partial_rope(
    x: Tensor, rotated: int, cache: Tensor, positions: Tensor, interleaved: bool
) -> Tensor:
    """Implement `Kernels.apply_partial_rope`, in one launch."""
    tokens, heads, width = x.shape
    out = x.new_empty((tokens, heads, rotated))
    if out.numel():
        _rotate_last_channels[(tokens, triton.cdiv(heads, _HEADS))](
            x[..., width - rotated :], cache, positions, out, x.stride(0), x.stride(1), heads,
            rotated, INTERLEAVED=interleaved, HEADS=_HEADS, BLOCK=block(rotated), num_warps=4,
        )  # fmt: skip
    return out


@kernel
def _rotate_last_channels(
    x, cache, positions, out, x_stride, head_stride, heads, rotated,
    INTERLEAVED: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Rotate the last channels of some heads of one token."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    c = tl.arange(0, BLOCK)
    half = rotated // 2
    first = c < half
    pair = tl.where(first, c, c - half)
    own, partner = c, tl.where(first, c + half, c - half)
    if INTERLEAVED:
        own, partner = 2 * pair + (c >= half), 2 * pair + first
    in_c = c < rotated
    angle = cache + tl.load(positions + token) * rotated + pair
    cos = tl.load(angle, mask=in_c, other=1.0)
    sin = tl.load(angle + half, mask=in_c, other=0.0)
    inside = (head < heads)[:, None] & in_c[None, :]
    row = x + token * x_stride + head[:, None] * head_stride
    value = tl.load(row + own[None, :], mask=inside, other=0.0).to(tl.float32)
    other = tl.load(row + partner[None, :], mask=inside, other=0.0).to(tl.float32)
    turned = value * cos[None, :] + tl.where(first, -other, other) * sin[None, :]
    tl.store(out + (token * heads + head)[:, None] * rotated + c[None, :], turned, mask=inside)
