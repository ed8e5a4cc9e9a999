"""Prompts through a Mamba-2 mixer, by torch and by the native library, against float64."""

import dataclasses
import random

import pytest
import torch
import torch.nn.functional as F
from kernels.native_cases import PoisonedNative, in_float64, random_mixer, strided
from ragged_batches import (
    RaggedBatch,
    assert_pools_match,
    cloned,
    poisoned_pool,
    ragged_batch,
    random_snapshots,
    seeded,
)
from torch import Tensor

from baton.kernels.chunks import SnapshotPlan
from baton.kernels.conv1d import causal_conv1d_varlen_ref
from baton.kernels.mamba2 import (
    Mamba2Weights,
    plan_mamba2_prefill,
    plan_mamba2_prefill_native,
)
from baton.kernels.native.library import load
from baton.kernels.ssd import ssd_prefill_ref

CHUNK = 32


@pytest.fixture
def rng() -> random.Random:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    return seeded(seed)


def torch_plan(rows, *arguments):
    plan = plan_mamba2_prefill(rows.cu_seqlens_host, rows.prefix_lens_host, *arguments)
    return plan.on(torch.device("cpu"))(rows)


def native_plan(rows, *arguments):
    library = load()
    if library is None:
        pytest.skip("no C++ compiler")
    lens = (rows.cu_seqlens_host, rows.prefix_lens_host)
    plan = plan_mamba2_prefill_native(PoisonedNative(library), *lens, *arguments)
    return plan.on(torch.device("cpu"))(rows)


PLANS = [torch_plan, native_plan]


def pools_of(batch: RaggedBatch, weights: Mamba2Weights, conv=torch.float32, ssm=torch.float32):
    channels, width = weights.conv_weight.shape
    shape = (weights.heads, weights.head_dim, weights.d_state)
    return poisoned_pool(batch, (channels, width - 1), conv), poisoned_pool(batch, shape, ssm)


def reference(weights, zxbcdt, conv_pool, ssm_pool, batch, snapshots) -> Tensor:
    """Token by token in float64; writes the pools in their own dtype."""
    w = in_float64(weights)
    z, conv_input, dt = torch.split(zxbcdt.double(), w.splits, dim=-1)
    lens = (batch.cu_seqlens, batch.cu_seqlens_host, batch.prefix_lens_host)
    slots = (batch.read_slots, batch.write_slots, batch.has_initial)
    conv = causal_conv1d_varlen_ref(
        conv_input, w.conv_weight, w.conv_bias, *lens, conv_pool, *slots, snapshots
    )
    x, B, C = w.split_conv(conv)
    y = ssd_prefill_ref(
        x, dt, w.A, B, C, w.D, w.dt_bias, w.dt_limit, *lens, CHUNK, ssm_pool, *slots, snapshots
    ).flatten(1)
    if w.norm_weight is None:
        return y * F.silu(z)
    group = w.inner // w.groups
    gate = F.silu(z)
    wide = y if w.gate_last else y * gate
    grouped = wide.view(len(wide), -1, group)
    normed = grouped * torch.rsqrt(grouped.square().mean(-1, keepdim=True) + w.eps)
    normed = normed.flatten(1) * w.norm_weight
    return normed * gate if w.gate_last else normed


def assert_close_to_scale(y: Tensor, expected: Tensor, error: float) -> None:
    scale = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(y.double(), expected, atol=error * scale, rtol=0)


SHAPES = [
    (1, 1, 1, 1, 2),
    (3, 5, 1, 7, 4),
    (6, 16, 2, 16, 4),
    (4, 70, 4, 33, 3),
    (2, 64, 1, 128, 4),
]
RAGGED = [([1], [0]), ([70], [5]), ([33, 1, 0, 2, 100, 64], [0, 31, 4, 0, 50, 64])]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("lengths, prefixes", RAGGED)
@pytest.mark.parametrize("heads, head_dim, groups, d_state, width", SHAPES)
@pytest.mark.parametrize("norm", ["after the gate", "before the gate", "none"])
def test_outputs_states_windows_and_snapshots_match_the_reference(
    rng, plan, lengths, prefixes, heads, head_dim, groups, d_state, width, norm
):
    weights = random_mixer(heads, head_dim, groups, d_state, width, rng)
    if norm != "after the gate":
        last = norm == "before the gate"
        weight = weights.norm_weight if last else None
        weights = dataclasses.replace(weights, gate_last=last, norm_weight=weight)
    batch = ragged_batch(lengths, prefixes, rng)
    snapshots = random_snapshots(batch, CHUNK, rng)
    projected = strided(batch.tokens, sum(weights.splits), rng)
    pools = pools_of(batch, weights)
    expected_pools = cloned(pools)
    y = plan(batch.rows, width, CHUNK, snapshots)(weights, projected, *pools)
    expected = reference(weights, projected, *expected_pools, batch, snapshots)
    assert_close_to_scale(y, expected, 3e-5)
    assert_pools_match(pools[0], expected_pools[0], 0.0, 0.0)
    assert_pools_match(pools[1], expected_pools[1], 3e-5, 3e-5)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("chunk_size", [16, 48, 64, 256])
def test_the_chunk_size_changes_no_result(rng, plan, chunk_size):
    weights = random_mixer(4, 12, 2, 10, 4, rng)
    batch = ragged_batch([300, 90, 17], [0, chunk_size, 100], rng)
    snapshots = SnapshotPlan((0, 1), (chunk_size, chunk_size + 90), tuple(batch.spare_slots[:2]))
    projected = torch.randn(batch.tokens, sum(weights.splits))
    pools = pools_of(batch, weights)
    expected_pools = cloned(pools)
    y = plan(batch.rows, 4, chunk_size, snapshots)(weights, projected, *pools)
    expected = reference(weights, projected, *expected_pools, batch, snapshots)
    assert_close_to_scale(y, expected, 5e-5)
    assert_pools_match(pools[1], expected_pools[1], 3e-5, 3e-5)


@pytest.mark.parametrize("plan", PLANS)
def test_pools_keep_their_own_dtypes(rng, plan):
    weights = random_mixer(3, 8, 1, 16, 4, rng)
    batch = ragged_batch([40, 7], [0, 32], rng)
    projected = torch.randn(batch.tokens, sum(weights.splits))
    pools = pools_of(batch, weights, torch.bfloat16, torch.bfloat16)
    expected_pools = cloned(pools)
    y = plan(batch.rows, 4, CHUNK, None)(weights, projected, *pools)
    expected = reference(weights, projected, *expected_pools, batch, None)
    assert_close_to_scale(y, expected, 5e-5)
    assert_pools_match(pools[0], expected_pools[0], 0.0, 2**-7)
    assert_pools_match(pools[1], expected_pools[1], 1e-5, 2**-7)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("chunk_size, cuts", [(64, [64, 192, 256]), (256, [256]), (32, [32, 64])])
def test_a_prompt_cut_on_the_grid_equals_the_whole_bit_for_bit(rng, plan, chunk_size, cuts):
    weights = random_mixer(6, 16, 2, 32, 4, rng)
    total = 301
    projected = torch.randn(total, sum(weights.splits))
    whole = ragged_batch([total], [0], rng)
    pools = pools_of(whole, weights)
    y = plan(whole.rows, 4, chunk_size, None)(weights, projected, *pools)
    outputs, kept = [], None
    for start, end in zip([0, *cuts], [*cuts, total], strict=True):
        # Mixed with another row, so that the batch is not the same either.
        piece = ragged_batch([37, end - start], [0, start], rng)
        mixed = torch.cat((torch.randn(37, projected.shape[1]), projected[start:end]))
        piece_pools = pools_of(piece, weights)
        if kept is not None:
            for pool, state in zip(piece_pools, kept, strict=True):
                pool[piece.read_slots[1]] = state
        outputs.append(plan(piece.rows, 4, chunk_size, None)(weights, mixed, *piece_pools)[37:])
        kept = [pool[piece.write_slots[1]].clone() for pool in piece_pools]
    assert torch.equal(torch.cat(outputs), y)
    assert kept is not None
    for pool, state in zip(pools, kept, strict=True):
        assert torch.equal(pool[whole.write_slots[0]], state)


@pytest.mark.parametrize("plan", PLANS)
def test_a_poisoned_row_does_not_reach_its_neighbours(rng, plan):
    weights = random_mixer(3, 8, 1, 16, 4, rng)
    batch = ragged_batch([40, 23, 50], [0, 0, 3], rng)
    projected = torch.randn(batch.tokens, sum(weights.splits))
    clean = pools_of(batch, weights)
    pools = [pool.clone() for pool in clean]
    wanted = plan(batch.rows, 4, CHUNK, None)(weights, projected, *clean)
    projected[40:63] = torch.nan
    y = plan(batch.rows, 4, CHUNK, None)(weights, projected, *pools)
    assert torch.equal(y[:40], wanted[:40]) and torch.equal(y[63:], wanted[63:])
    others = batch.write_slots[[0, 2]]
    for pool, expected in zip(pools, clean, strict=True):
        assert torch.equal(pool[others], expected[others])


@pytest.mark.parametrize("plan", PLANS)
def test_large_steps_neither_overflow_nor_lose_the_small_ones(rng, plan):
    weights = dataclasses.replace(random_mixer(3, 4, 1, 6, 4, rng), dt_limit=(0.0, float("inf")))
    batch = ragged_batch([128], [0], rng)
    projected = torch.randn(128, sum(weights.splits))
    projected[:, -3:] *= 30  # log-decays of a chunk run past -1000
    pools = pools_of(batch, weights)
    expected_pools = cloned(pools)
    y = plan(batch.rows, 4, CHUNK, None)(weights, projected, *pools)
    expected = reference(weights, projected, *expected_pools, batch, None)
    assert_close_to_scale(y, expected, 5e-5)


@pytest.mark.parametrize("plan", PLANS)
def test_what_comes_after_much_was_forgotten_is_remembered_exactly(rng, plan):
    """Sums of logarithms beyond -1000 have steps of 1.2e-4 in float32, their differences not."""
    weights = random_mixer(3, 4, 1, 6, 4, rng)
    weights = dataclasses.replace(weights, A=weights.A - 1, dt_limit=(0.0, float("inf")))
    batch = ragged_batch([64], [0], rng)
    projected = torch.randn(64, sum(weights.splits))
    projected[:, -3:] += torch.where(torch.arange(64) < 40, 15.0, -4.0)[:, None]
    pools = pools_of(batch, weights)
    expected_pools = cloned(pools)
    y = plan(batch.rows, 4, 64, None)(weights, projected, *pools)
    expected = reference(weights, projected, *expected_pools, batch, None)
    assert_close_to_scale(y, expected, 1e-5)
    assert_pools_match(pools[1], expected_pools[1], 1e-5, 1e-5)


def test_a_snapshot_off_the_grid_is_refused(rng):
    batch = ragged_batch([100], [0], rng)
    snapshots = SnapshotPlan((0,), (40,), (batch.spare_slots[0],))
    for plan in PLANS:
        with pytest.raises(ValueError, match="chunk"):
            plan(batch.rows, 4, CHUNK, snapshots)
