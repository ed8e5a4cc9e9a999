"""Rotary frequencies, read from a config."""

import math

import torch
from torch import Tensor

from baton.engine.errors import ConfigError
from baton.engine.models.fields import Fields
from baton.kernels.rope import rope_cache


def read_rope(
    fields: Fields,
    head_dim: int,
    max_positions: int,
    fraction: float = 1.0,
    theta: float = 10000.0,
) -> Tensor:
    """Cosines and sines of every position: [max_positions, rotary channels] float32.

    fraction: the part of each head that is rotated. theta: the base, where the config names none
    as `rope_parameters.rope_theta` (transformers 5) or `rope_theta` (before it).
    """
    section = fields.section("rope_parameters")
    scaling = section if section.raw else fields.section("rope_scaling")
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    if kind not in ("default", "llama3"):
        raise ConfigError(
            f'{fields.where}: rotary positions of type "{kind}" are not supported; '
            '"default" and "llama3" are'
        )
    theta = section.number("rope_theta", fields.number("rope_theta", theta))
    rotary = int(head_dim * fraction)
    exponents = torch.arange(0, rotary, 2, dtype=torch.float32) / rotary
    frequencies = theta**-exponents
    if kind == "llama3":
        frequencies = _llama3(scaling, frequencies)
    return rope_cache(frequencies, max_positions)


def _llama3(scaling: Fields, frequencies: Tensor) -> Tensor:
    """Llama 3.1's stretch to longer contexts: a wave that the original context holds many of stays
    as it is, one that it holds few of is stretched by `factor`, those between in part.

    frequencies: [rotary / 2] float32, radians a position
    """
    names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    scaling.require(*names)
    factor, low, high, context = (scaling.number(name) for name in names)
    if low >= high:
        raise ConfigError(
            f"{scaling.where}: low_freq_factor ({low}) should be below high_freq_factor ({high})"
        )
    waves = context * frequencies / (2 * math.pi)  # in the original context
    kept = ((waves - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies * (kept + (1.0 - kept) / factor)
