"""Rotary position embedding in the rotate-half layout (Su et al., 2021, arXiv:2104.09864).

Channel `i` of the first half of the rotary part is paired with channel `i` of its second half.
"""

import torch
from torch import Tensor

from baton.kernels.native import signatures
from baton.kernels.native.recorder import SMALL, Native


def rope_cache(inverse_frequencies: Tensor, max_positions: int, scale: float = 1.0) -> Tensor:
    """Cosines and sines of every position, computed once at load.

    inverse_frequencies: [R / 2] float, radians a position for each pair of channels
    scale:   factor on cosines and sines (the attention factor of YaRN and its kin)
    returns  [max_positions, R] float32: R / 2 cosines, then R / 2 sines
    """
    positions = torch.arange(max_positions, dtype=torch.float32, device=inverse_frequencies.device)
    angles = torch.outer(positions, inverse_frequencies.float())
    return torch.cat((angles.cos(), angles.sin()), dim=1) * scale


def apply_rope(x: Tensor, cache: Tensor, positions: Tensor) -> Tensor:
    """Rotate the first R channels of every head by its token's position; the rest pass through.

    x:         [T, heads, D] float, D >= R
    cache:     [max_positions, R] float32, from rope_cache
    positions: [T] int64, absolute tokens
    returns    [T, heads, D], dtype of x; computed in float32
    """
    rotary = cache.shape[1]
    cos, sin = cache[positions][:, None, :].chunk(2, dim=-1)
    first, second = x[..., :rotary].float().chunk(2, dim=-1)
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return torch.cat((rotated.to(x.dtype), x[..., rotary:]), dim=-1)


def apply_rope_native(native: Native, x: Tensor, cache: Tensor, positions: Tensor) -> Tensor:
    """The same, for float32 x whose heads lie end to end."""
    rows, heads, head_dim = x.shape
    out = native.empty(rows, heads, head_dim)
    native.call(
        signatures.Rope(
            x.data_ptr(),
            cache.data_ptr(),
            positions.data_ptr(),
            out.data_ptr(),
            rows,
            heads,
            head_dim,
            cache.shape[1],
            x.stride(0),
        ),
        small=out.numel() < SMALL,
    )
    return out
