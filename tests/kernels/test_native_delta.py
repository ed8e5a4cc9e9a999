"""The native decode step of a gated-delta mixer against float64."""

import random

import pytest
import torch
import torch.nn.functional as F
from kernels.native_cases import assert_near, strided
from ragged_batches import assert_pools_match, cloned, poisoned_pool, ragged_batch
from torch import Tensor

from baton.kernels.delta_mixer import (
    DeltaInputs,
    DeltaWeights,
    gated_delta_step,
    gated_delta_step_native,
)
from baton.kernels.gated_delta import gated_delta_update_ref

# Heads of keys, heads of values, channels of each.
SIZES = [(1, 1, 1, 1), (2, 6, 5, 7), (1, 2, 16, 64), (3, 3, 33, 100), (2, 4, 24, 130)]
every_size = pytest.mark.parametrize("sizes", SIZES, ids=str)
every_decay = pytest.mark.parametrize("channelwise", [False, True])


def random_mixer(sizes: tuple[int, ...], channelwise: bool, rng: random.Random) -> DeltaWeights:
    key_heads, heads, key_dim, value_dim = sizes
    channels = 2 * key_heads * key_dim + heads * value_dim
    return DeltaWeights(
        conv_weight=torch.randn(channels, rng.choice([2, 4])),
        A=-torch.rand(heads) * 4 - 0.1,
        dt_bias=torch.randn(heads * key_dim if channelwise else heads),
        norm_weight=torch.randn(value_dim),
        key_heads=key_heads,
        key_dim=key_dim,
        eps=1e-6,
        silu_gate=rng.random() < 0.5,
    )


def random_inputs(rows: int, weights: DeltaWeights, rng: random.Random) -> DeltaInputs:
    widths = (
        weights.conv_weight.shape[0],
        weights.heads * weights.value_dim,
        weights.heads,
        weights.dt_bias.shape[0],
    )
    return DeltaInputs(*(strided(rows, width, rng) for width in widths))


def reference(weights, inputs, conv_pool, state_pool, read, write, has_initial) -> Tensor:
    """Compute the step in float64, and write the pools in their own dtype."""
    windows = conv_pool[read].double() * 1.0
    if has_initial is not None:
        windows[~has_initial] = 0.0
    windows = torch.cat((windows, inputs.qkv.double()[:, :, None]), dim=2)
    conv = F.silu((windows * weights.conv_weight.double()).sum(dim=2))
    q, k, v = weights.split_conv(conv)
    step = F.softplus(inputs.a.double() + weights.dt_bias.double())
    g = step.unflatten(1, (weights.heads, -1)) * weights.A.double()[:, None]
    if weights.dt_bias.shape[0] == weights.heads:
        g = g[:, :, 0]
    beta = inputs.b.double().sigmoid()
    o = gated_delta_update_ref(q, k, v, g, beta, state_pool, read, write, has_initial)
    normed = o * torch.rsqrt(o.square().mean(dim=2, keepdim=True) + weights.eps)
    z = inputs.z.double()
    conv_pool[write] = windows[:, :, 1:].to(conv_pool.dtype)
    gate = F.silu(z) if weights.silu_gate else z.sigmoid()
    return (normed * weights.norm_weight.double()).flatten(1) * gate


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("all_go_on", [False, True])
@every_decay
@every_size
def test_a_step_matches_the_reference(native, rng, sizes, channelwise, rows, dtype, all_go_on):
    if channelwise:
        sizes = (sizes[1], *sizes[1:])  # as many heads of keys as of values
    weights = random_mixer(sizes, channelwise, rng)
    batch = ragged_batch(
        [1] * rows, [7 if all_go_on else rng.choice([0, 7]) for _ in range(rows)], rng
    )
    inputs = random_inputs(rows, weights, rng)
    channels, width = weights.conv_weight.shape
    conv_pool = poisoned_pool(batch, (channels, width - 1), dtype)
    state_pool = poisoned_pool(batch, (weights.heads, weights.key_dim, weights.value_dim), dtype)
    expected_conv, expected_state = conv_pool.clone(), state_pool.clone()
    slots = (batch.read_slots, batch.write_slots, None if all_go_on else batch.has_initial)
    y = gated_delta_step_native(native, weights, inputs, conv_pool, state_pool, *slots)
    wanted = reference(weights, inputs, expected_conv, expected_state, *slots)
    assert_near(y, wanted, 5e-5)
    error = 2e-5 if dtype == torch.float32 else 2**-7
    assert_pools_match(conv_pool, expected_conv, 0.0, 0.0 if dtype == torch.float32 else error)
    assert_pools_match(state_pool, expected_state, 2e-5, error)


@every_decay
def test_a_row_is_the_same_bits_in_every_batch_and_reuses_what_another_left(
    native, rng, channelwise
):
    weights = random_mixer((2, 2, 20, 70), channelwise, rng)
    channels, width = weights.conv_weight.shape
    inputs = random_inputs(6, weights, rng)
    pools = torch.randn(7, channels, width - 1), torch.randn(7, 2, 20, 70)
    slots = torch.arange(1, 7)
    fresh = torch.tensor([True, False] * 3)
    together, apart = cloned(pools), cloned(pools)
    y = gated_delta_step_native(native, weights, inputs, *together, slots, slots, fresh)
    for row in range(6):
        one = slice(row, row + 1)
        alone = gated_delta_step_native(
            native, weights, inputs.tokens(one), *apart, slots[one], slots[one], fresh[one]
        )
        assert torch.equal(alone, y[one])
    for batched, single in zip(together, apart, strict=True):
        assert torch.equal(batched, single)


def test_it_does_what_torch_s_step_does(native, rng):
    weights = random_mixer((2, 4, 16, 32), False, rng)
    inputs = random_inputs(3, weights, rng)
    channels, width = weights.conv_weight.shape
    pools = torch.randn(4, channels, width - 1), torch.randn(4, 4, 16, 32)
    slots = torch.tensor([2, 1, 3])
    mine, theirs = cloned(pools), cloned(pools)
    y = gated_delta_step_native(native, weights, inputs, *mine, slots, slots)
    torch.testing.assert_close(
        y, gated_delta_step(weights, inputs, *theirs, slots, slots), atol=1e-4, rtol=1e-4
    )
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
