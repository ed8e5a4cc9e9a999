"""Norms and rotary embedding against float64 formulas written out."""

import pytest
import torch
from ragged_batches import seeded

from baton.kernels.norm import gated_rms_norm, rms_norm
from baton.kernels.rope import apply_rope, rope_cache


@pytest.mark.parametrize("shape", [(1, 7), (5, 48), (3, 4, 16)])
def test_rms_norm_matches_float64(shape):
    seeded(shape[-1])
    x, weight = torch.randn(shape) * 3, torch.randn(shape[-1])
    wide = x.double()
    expected = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    torch.testing.assert_close(rms_norm(x, weight, 1e-5).double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("norm_before_gate", [False, True])
@pytest.mark.parametrize("channels, group_size", [(12, 12), (12, 4), (30, 5)])
def test_gated_norm_matches_float64_group_by_group(channels, group_size, norm_before_gate):
    seeded(channels + group_size)
    y, z, weight = torch.randn(6, channels), torch.randn(6, channels), torch.randn(channels)
    gate = z.double() * torch.sigmoid(z.double())
    expected = torch.empty(6, channels, dtype=torch.float64)
    for first in range(0, channels, group_size):
        group = slice(first, first + group_size)
        part = y[:, group].double()
        if not norm_before_gate:
            part = part * gate[:, group]
        part = part / (part.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight[group].double()
        expected[:, group] = part * gate[:, group] if norm_before_gate else part
    out = gated_rms_norm(y, z, weight, 1e-6, group_size, norm_before_gate)
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)


def test_norms_return_the_dtype_of_their_input():
    seeded(0)
    x = torch.randn(4, 8).bfloat16()
    assert rms_norm(x, torch.ones(8), 1e-5).dtype == torch.bfloat16
    assert gated_rms_norm(x, x, torch.ones(8), 1e-5, 4, False).dtype == torch.bfloat16


@pytest.mark.parametrize("head_dim, rotary", [(16, 16), (20, 10), (8, 2)])
def test_rope_turns_each_pair_by_its_angle_and_leaves_the_rest(head_dim, rotary):
    rng = seeded(head_dim)
    frequencies = 10000.0 ** -(torch.arange(0, rotary, 2) / rotary)
    positions = torch.tensor([rng.randrange(500) for _ in range(7)])
    x = torch.randn(7, 3, head_dim)
    out = apply_rope(x, rope_cache(frequencies, 500), positions)
    half = rotary // 2
    pairs = torch.complex(x[..., :half].double(), x[..., half:rotary].double())
    angles = (positions[:, None].float() * frequencies).double()[:, None, :]
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    torch.testing.assert_close(out[..., :half].double(), turned.real, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(out[..., half:rotary].double(), turned.imag, atol=1e-5, rtol=1e-5)
    assert torch.equal(out[..., rotary:], x[..., rotary:])


def test_the_cache_scale_multiplies_what_is_turned():
    seeded(1)
    frequencies, x, positions = torch.rand(4), torch.randn(2, 1, 8), torch.tensor([3, 9])
    plain = apply_rope(x, rope_cache(frequencies, 10), positions)
    scaled = apply_rope(x, rope_cache(frequencies, 10, scale=1.5), positions)
    torch.testing.assert_close(scaled, plain * 1.5)
