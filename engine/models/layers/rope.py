"""Rotary frequencies, read from a config."""

import math

import torch
from torch import Tensor

from baton.core.errors import ConfigError
from baton.engine.models.fields import Fields
from baton.kernels.rope import rope_cache


def read_rope(
    fields: Fields,
    head_dim: int,
    max_positions: int,
    fraction: float = 1.0,
    theta: float = 10000.0,
) -> Tensor:
    """Return cosines and sines of every position: [max_positions, rotary channels] float32.

    fraction: the part of each head that is rotated. theta: the base, where the config names none
    as `rope_parameters.rope_theta` (transformers 5) or `rope_theta` (before it).
    """
    scaling, kind = _scaling(fields)
    if kind not in ("default", "llama3", "yarn"):
        raise ConfigError(
            f'{fields.where}: rotary positions of type "{kind}" are not supported; '
            '"default", "llama3" and "yarn" are'
        )
    theta = scaling.number("rope_theta", fields.number("rope_theta", theta))
    rotary = int(head_dim * fraction)
    exponents = torch.arange(0, rotary, 2, dtype=torch.float32) / rotary
    frequencies = theta**-exponents
    if kind == "llama3":
        frequencies = _llama3(scaling, frequencies)
    if kind == "yarn":
        frequencies = _yarn(scaling, frequencies, theta, max_positions)
        return rope_cache(frequencies, max_positions, _yarn_factor(scaling, max_positions))
    return rope_cache(frequencies, max_positions)


def read_score_factor(fields: Fields) -> float:
    """Return the factor of DeepSeek's attention scores where positions are stretched."""
    scaling, kind = _scaling(fields)
    if kind == "default" or not scaling.number("mscale_all_dim", 0.0):
        return 1.0
    return _mscale(scaling.number("factor"), scaling.number("mscale_all_dim")) ** 2


def _scaling(fields: Fields) -> tuple[Fields, str]:
    """Return the section on rotary positions, and the type that it names."""
    section = fields.section("rope_parameters")
    scaling = section if section.raw else fields.section("rope_scaling")
    return scaling, scaling.text("rope_type", scaling.text("type", "default"))


def _llama3(scaling: Fields, frequencies: Tensor) -> Tensor:
    """Stretch frequencies to longer contexts, as Llama 3.1 does: a wave that the original context
    holds many of stays as it is, one that it holds few of is stretched by `factor`, those between
    in part.

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


def _yarn(scaling: Fields, frequencies: Tensor, theta: float, max_positions: int) -> Tensor:
    """Stretch frequencies as YaRN does (Peng et al., 2023, arXiv:2309.00071): pairs of channels
    that turn often in the original context stay as they are, those that turn seldom are stretched
    by `factor`, and a ramp over the pairs, not over their frequencies, lies between.

    frequencies: [rotary / 2] float32, radians a position
    """
    context = scaling.number("original_max_position_embeddings", float(max_positions))
    pairs = frequencies.shape[0]

    def pair(turns: float) -> float:
        """Return the pair that turns so often in the original context."""
        return pairs * math.log(context / (turns * 2 * math.pi)) / math.log(theta)

    first = pair(scaling.number("beta_fast", 32.0))
    last = pair(scaling.number("beta_slow", 1.0))
    if scaling.flag("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    width = max(last - first, 0.001)
    stretched = ((torch.arange(pairs, dtype=torch.float32) - first) / width).clamp(0.0, 1.0)
    factor = _yarn_stretch(scaling, max_positions)
    return frequencies * (1.0 - stretched + stretched / factor)


def _yarn_stretch(scaling: Fields, max_positions: int) -> float:
    original = scaling.number("original_max_position_embeddings", float(max_positions))
    return scaling.number("factor", max_positions / original)


def _yarn_factor(scaling: Fields, max_positions: int) -> float:
    """Return the factor of cosines and sines, so that scores keep their spread."""
    if scaling.has("attention_factor"):
        return scaling.number("attention_factor")
    stretch = _yarn_stretch(scaling, max_positions)
    own, all_channels = scaling.number("mscale", 0.0), scaling.number("mscale_all_dim", 0.0)
    if own and all_channels:
        return _mscale(stretch, own) / _mscale(stretch, all_channels)
    return _mscale(stretch, 1.0)


def _mscale(stretch: float, weight: float) -> float:
    return 1.0 if stretch <= 1.0 else 0.1 * weight * math.log(stretch) + 1.0
