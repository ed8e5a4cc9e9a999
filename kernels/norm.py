"""RMS norms, computed in float32 and returned in the dtype of the input."""

import torch
import torch.nn.functional as F
from torch import Tensor

from baton.kernels.native import signatures
from baton.kernels.native.recorder import SMALL, Native


def rms_norm(x: Tensor, weight: Tensor, eps: float, zero_centred: bool = False) -> Tensor:
    """x / sqrt(mean(x^2) + eps), scaled by the weight, over the last dimension.

    x:      [..., C] float
    weight: [C] float, or any shape that x's last dimensions have (one weight a head, say)
    zero_centred: the weight is stored as its distance from one (Qwen3-Next), so scale by 1 + weight
    returns [..., C], dtype of x
    """
    normed = _normalise(x.float(), eps)
    scale = weight.float() + 1.0 if zero_centred else weight.float()
    return (normed * scale).to(x.dtype)


def rms_norm_native(
    native: Native, x: Tensor, weight: Tensor, eps: float, zero_centred: bool = False
) -> Tensor:
    """The same, for float32 weight [C] and x [T, C], or weight [H, C] and x [T, H, C] whose heads
    lie end to end."""
    rows, width = x.shape[0], x.shape[-1]
    heads = x.shape[1] if x.dim() == 3 else 1
    out = native.empty(*x.shape)
    native.call(
        signatures.RmsNorm(
            x.data_ptr(),
            weight.data_ptr(),
            out.data_ptr(),
            rows,
            heads,
            width,
            x.stride(0),
            eps,
            1.0 if zero_centred else 0.0,
        ),
        small=out.numel() < SMALL,
    )
    return out


def gated_rms_norm(
    y: Tensor, z: Tensor, weight: Tensor, eps: float, group_size: int, norm_before_gate: bool
) -> Tensor:
    """RMS norm of each group of channels, gated by silu(z) before the norm or after it.

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
