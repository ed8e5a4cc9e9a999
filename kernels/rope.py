"""Rotary position embedding in the rotate-half layout (Su et al., 2021, arXiv:2104.09864).

Channel `i` of the first half of the rotary part is paired with channel `i` of its second half.
"""

import torch
from torch import Tensor

from baton.kernels.native.recorder import SMALL, Native


def rope_cache(inverse_frequencies: Tensor, max_positions: int, scale: float = 1.0) -> Tensor:
    """Compute the cosines and sines of every position, once at load.

    inverse_frequencies: [R / 2] float, radians a position for each pair of channels
    scale:   factor on cosines and sines (the attention factor of YaRN and its kin)
    returns  [max_positions, R] float32: R / 2 cosines, then R / 2 sines
    """
    positions = torch.arange(max_positions, dtype=torch.float32, device=inverse_frequencies.device)
    angles = torch.outer(positions, inverse_frequencies.float())
    return torch.cat((angles.cos(), angles.sin()), dim=1) * scale


def apply_rope(x: Tensor, cache: Tensor, positions: Tensor) -> Tensor:
    """Implement `Kernels.apply_rope` in torch."""
    rotary = cache.shape[1]
    cos, sin = cache[positions][:, None, :].chunk(2, dim=-1)
    first, second = x[..., :rotary].float().chunk(2, dim=-1)
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return torch.cat((rotated.to(x.dtype), x[..., rotary:]), dim=-1)


def apply_rope_native(native: Native, x: Tensor, cache: Tensor, positions: Tensor) -> Tensor:
    """Implement `Kernels.apply_rope` natively, for float32 x whose heads lie end to end."""
    rows, heads, head_dim = x.shape
    out = native.empty(rows, heads, head_dim)
    native.call(
        "rope",
        out.numel() < SMALL,
        x=x,
        cache=cache,
        positions=positions,
        out=out,
        rows=rows,
        heads=heads,
        head_dim=head_dim,
        rotary=cache.shape[1],
        x_stride=x.stride(0),
    )
    return out
