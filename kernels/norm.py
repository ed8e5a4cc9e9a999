"""RMS norms, computed in float32 and returned in the dtype of the input."""

import torch
import torch.nn.functional as F
from torch import Tensor

from baton.kernels.native.recorder import SMALL, Native


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Implement `Kernels.rms_norm` in torch."""
    return (_normalise(x.float(), eps) * weight.float()).to(x.dtype)


def rms_norm_native(native: Native, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Implement `Kernels.rms_norm` natively, for float32 weight [C] and x [T, C], or weight [H, C]
    and x [T, H, C] whose heads lie end to end."""
    rows, width = x.shape[0], x.shape[-1]
    heads = x.shape[1] if x.dim() == 3 else 1
    out = native.empty(*x.shape)
    native.call(
        "rms_norm",
        out.numel() < SMALL,
        x=x,
        weight=weight,
        out=out,
        rows=rows,
        heads=heads,
        width=width,
        x_stride=x.stride(0),
        eps=eps,
    )
    return out


def square_sums(x: Tensor, groups: int, group: int) -> Tensor:
    """Implement `Kernels.square_sums` in torch."""
    sums = x.new_zeros((x.shape[0], groups), dtype=torch.float32)
    sums[:, group] = x.float().square().sum(dim=-1)
    return sums


def square_sums_native(native: Native, x: Tensor, groups: int, group: int) -> Tensor:
    """Implement `Kernels.square_sums` natively, for float32 x."""
    out = native.empty(x.shape[0], groups)
    native.call(
        "square_sums",
        x.numel() < SMALL,
        x=x,
        out=out,
        rows=x.shape[0],
        width=x.shape[1],
        x_stride=x.stride(0),
        groups=groups,
        group=group,
    )
    return out


def norm_by_sums(
    x: Tensor, sums: Tensor, group: int, width: int, weight: Tensor, eps: float
) -> Tensor:
    """Implement `Kernels.norm_by_sums` in torch."""
    square = sums[:, group, None] / width
    return (x.float() * torch.rsqrt(square + eps) * weight).to(x.dtype)


def norm_by_sums_native(
    native: Native, x: Tensor, sums: Tensor, group: int, width: int, weight: Tensor, eps: float
) -> Tensor:
    """Implement `Kernels.norm_by_sums` natively, for float32 x."""
    out = native.empty(*x.shape)
    native.call(
        "norm_by_sums",
        x.numel() < SMALL,
        x=x,
        sums=sums,
        weight=weight,
        out=out,
        rows=x.shape[0],
        width=x.shape[1],
        x_stride=x.stride(0),
        groups=sums.shape[1],
        group=group,
        whole=width,
        eps=eps,
    )
    return out


def gated_rms_norm(
    y: Tensor, z: Tensor, weight: Tensor, eps: float, group_size: int, norm_before_gate: bool
) -> Tensor:
    """Normalise each group of channels by its RMS, gated by silu(z) before the norm or after it.

    y, z:   [T, C] float; z is the gate
    weight: [C] float
    group_size: channels that share one mean square; C is a multiple of it
    norm_before_gate: norm(y) * silu(z) (gated delta nets, some Falcon-H1), else norm(y * silu(z))
    returns [T, C], dtype of y
    """
    gate = F.silu(z.float())
    wide = y.float()
    if not norm_before_gate:
        wide = wide * gate
    grouped = wide.reshape(*wide.shape[:-1], -1, group_size)
    normed = _normalise(grouped, eps).flatten(-2) * weight.float()
    if norm_before_gate:
        normed = normed * gate
    return normed.to(y.dtype)


def _normalise(x: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)
