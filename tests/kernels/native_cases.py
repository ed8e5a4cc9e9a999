"""Helpers that the tests of native operations share."""

import dataclasses
import random
from typing import Any

import torch
from torch import Tensor

from baton.kernels.mamba2 import Mamba2Weights
from baton.kernels.native.recorder import Native


class PoisonedNative(Native):
    """Results begin as NaN."""

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return (
            super().empty(*shape, dtype=dtype).fill_(torch.nan if dtype.is_floating_point else -1)
        )


def strided(rows: int, width: int, rng: random.Random) -> Tensor:
    """[rows, width] inside wider rows of NaN."""
    first = rng.randrange(5)
    wide = torch.full((rows, width + 7), torch.nan)
    wide[:, first : first + width] = torch.randn(rows, width)
    return wide[:, first : first + width]


def assert_near(got: Tensor, wanted: Tensor, error: float, scale: float | None = None) -> None:
    """Within `error` of the reference's own scale, or of that of what was added up."""
    assert got.dtype == torch.float32 and not got.isnan().any()
    if scale is None:
        scale = float(wanted.abs().max()) if wanted.numel() else 1.0
    torch.testing.assert_close(got.double(), wanted, atol=error * max(scale, 1e-3), rtol=0)


def random_mixer(heads, head_dim, groups, d_state, width, rng) -> Mamba2Weights:
    channels = heads * head_dim + 2 * groups * d_state
    return Mamba2Weights(
        conv_weight=torch.randn(channels, width),
        conv_bias=torch.randn(channels) if rng.random() < 0.7 else None,
        A=-torch.rand(heads) * 8 - 0.1,
        D=torch.randn(heads),
        dt_bias=torch.randn(heads) - 1,
        norm_weight=torch.randn(heads * head_dim),
        head_dim=head_dim,
        groups=groups,
        d_state=d_state,
        # The norm of a few channels would magnify rounding where they happen to be small.
        eps=1e-5 if heads * head_dim // groups > 8 else 0.1,
        dt_limit=rng.choice([(0.0, float("inf")), (0.05, 0.4)]),
    )


def in_float64(weights: Mamba2Weights) -> Mamba2Weights:
    values: dict[str, Any] = {
        name: value.double() for name, value in vars(weights).items() if isinstance(value, Tensor)
    }
    return dataclasses.replace(weights, **values)
