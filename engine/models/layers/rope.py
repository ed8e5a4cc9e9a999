"""Rotary frequencies, read from a config."""

import torch
from torch import Tensor

from baton.engine.errors import ConfigError
from baton.engine.models.fields import Fields
from baton.kernels.rope import rope_cache


def read_rope(fields: Fields, head_dim: int, max_positions: int, fraction: float = 1.0) -> Tensor:
    """Cosines and sines of every position: [max_positions, rotary channels] float32.

    fraction: the part of each head that is rotated. The base is `rope_parameters.rope_theta`
    (transformers 5) or `rope_theta` (before it).
    """
    section = fields.section("rope_parameters")
    scaling = section if section.raw else fields.section("rope_scaling")
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    if kind != "default":
        raise ConfigError(
            f'{fields.where}: rotary positions of type "{kind}" are not supported; '
            'only "default" is'
        )
    theta = section.number("rope_theta", fields.number("rope_theta", 10000.0))
    rotary = int(head_dim * fraction)
    exponents = torch.arange(0, rotary, 2, dtype=torch.float32) / rotary
    return rope_cache(theta**-exponents, max_positions)
