"""A Mamba-2 mixer's kernels against token-by-token float64 recurrences."""

from typing import Any

import pytest
import torch
from ragged_batches import RaggedBatch, poisoned_pool, ragged_batch, random_snapshots, seeded
from torch import Tensor
from triton_device import BOUND, assert_near, assert_pools_near, here

from baton.kernels import mamba2 as torch_mamba2
from baton.kernels.chunks import RaggedRows, SnapshotPlan
from baton.kernels.conv1d import causal_conv1d_varlen_ref
from baton.kernels.mamba2 import Mamba2Weights
from baton.kernels.ssd import ssd_prefill_ref
from baton.kernels.state_update import selective_state_update_ref
from baton.kernels.triton import conv1d, mamba2, ssd, state_update
from baton.kernels.triton.prompt_chunks import prompt_chunks

RAGGED = [
    ([33, 1, 0, 70], [0, 31, 3, 45], 32, torch.float32),  # prefixes off the chunk grid
    ([40, 2], [0, 22], 24, torch.bfloat16),  # a chunk size that is no power of two
    ([0, 0], [0, 7], 32, torch.float32),  # rows without a token keep what they came with
]


def planned(plan, rows: RaggedRows, *arguments):
    """Return the device form of `plan` for the rows, with a copy to the device of its own."""
    made = plan(rows.cu_seqlens_host, rows.prefix_lens_host, *arguments)
    return made.on(rows.read_slots.device)(rows)


def lens_and_slots(batch) -> dict[str, Any]:
    names = ["cu_seqlens", "cu_seqlens_host", "prefix_lens_host"]
    names += ["read_slots", "write_slots", "has_initial"]
    return {name: getattr(batch, name) for name in names}


def scan_inputs(tokens, heads, groups, head_dim, state, dtype) -> dict[str, Any]:
    return {
        "A": -torch.rand(heads) * 8 - 0.1,
        "D": torch.randn(heads),
        "dt_bias": torch.randn(heads) - 2,
        "x": torch.randn(tokens, heads, head_dim).to(dtype),
        "dt": torch.randn(tokens, heads).to(dtype),
        "B": torch.randn(tokens, groups, state).to(dtype),
        "C": torch.randn(tokens, groups, state).to(dtype),
    }


@pytest.mark.parametrize("lengths, prefixes, chunk, dtype", RAGGED)
def test_the_scan_matches_the_recurrence(lengths, prefixes, chunk, dtype):
    rng = seeded(sum(lengths))
    heads, groups, head_dim, state = (2, 1, 5, 7) if chunk == 24 else (4, 2, 16, 17)
    batch = ragged_batch(lengths, prefixes, rng)
    snapshots = random_snapshots(batch, chunk, rng)
    inputs = scan_inputs(batch.tokens, heads, groups, head_dim, state, dtype)
    expected_pool = poisoned_pool(batch, (heads, head_dim, state), torch.float32)
    pool = here(expected_pool)
    chunks = planned(prompt_chunks, here(batch.rows), chunk, snapshots)
    limit = (0.01, 0.5)
    y = ssd.ssd_prompts(**here(inputs), dt_limit=limit, ssm_pool=pool, chunks=chunks)
    expected = ssd_prefill_ref(
        **inputs, dt_limit=limit, chunk_size=chunk, ssm_pool=expected_pool, snapshots=snapshots,
        **lens_and_slots(batch),
    )  # fmt: skip
    assert y.dtype == dtype
    assert_near(y, expected, BOUND[dtype])
    assert_pools_near(pool, expected_pool, BOUND[dtype])


def check_one_chunk(inputs: dict[str, Any], batch: RaggedBatch, bound: float) -> None:
    expected_pool = poisoned_pool(batch, (2, 4, 6), torch.float32)
    pool = here(expected_pool)
    chunks = planned(prompt_chunks, here(batch.rows), 64, None)
    limit = (0.0, float("inf"))
    y = ssd.ssd_prompts(**here(inputs), dt_limit=limit, ssm_pool=pool, chunks=chunks)
    expected = ssd_prefill_ref(
        **inputs, dt_limit=limit, chunk_size=64, ssm_pool=expected_pool, **lens_and_slots(batch)
    )
    assert_near(y, expected, bound)
    assert_pools_near(pool, expected_pool, bound)


def test_large_steps_neither_overflow_nor_lose_the_small_ones():
    batch = ragged_batch([64], [0], seeded(3))
    inputs = scan_inputs(64, 2, 1, 4, 6, torch.float32)
    inputs["dt"] *= 30  # log-decays of a chunk run past -1000
    check_one_chunk(inputs, batch, 2e-5)


def test_what_comes_after_much_was_forgotten_is_remembered_exactly():
    """Sums of logarithms beyond -1000 have steps of 1.2e-4 in float32, their differences not."""
    batch = ragged_batch([64], [0], seeded(6))
    inputs = scan_inputs(64, 2, 1, 4, 6, torch.float32)
    inputs["A"] -= 1
    inputs["dt"] += torch.where(torch.arange(64) < 40, 15.0, -4.0)[:, None]
    check_one_chunk(inputs, batch, 2e-6)


def test_a_prompt_cut_on_the_grid_equals_the_whole_bit_for_bit():
    rng = seeded(4)
    inputs = here(scan_inputs(70, 2, 1, 8, 8, torch.float32))
    sequences, layer = ("x", "dt", "B", "C"), ("A", "D", "dt_bias")
    fixed: dict[str, Any] = {name: inputs[name] for name in layer} | {"dt_limit": (0.0, 1.0)}

    def run(first: int, last: int, pool: Tensor, batch) -> Tensor:
        tokens: dict[str, Any] = {name: inputs[name][first:last] for name in sequences}
        chunks = planned(prompt_chunks, here(batch.rows), 32, None)
        return ssd.ssd_prompts(**tokens, **fixed, ssm_pool=pool, chunks=chunks)

    whole = ragged_batch([70], [0], rng)
    pool = here(poisoned_pool(whole, (2, 8, 8), torch.float32))
    y = run(0, 70, pool, whole)
    start, rest = ragged_batch([32], [0], rng), ragged_batch([38], [32], rng)
    start_pool = here(poisoned_pool(start, (2, 8, 8), torch.float32))
    rest_pool = here(poisoned_pool(rest, (2, 8, 8), torch.float32))
    pieces = [run(0, 32, start_pool, start)]
    rest_pool[int(rest.read_slots[0])] = start_pool[int(start.write_slots[0])]
    pieces.append(run(32, 70, rest_pool, rest))
    assert torch.equal(torch.cat(pieces), y)
    assert torch.equal(rest_pool[int(rest.write_slots[0])], pool[int(whole.write_slots[0])])


@pytest.mark.parametrize("silu", [True, False])
@pytest.mark.parametrize("lengths, prefixes, _, dtype", RAGGED)
def test_the_convolution_of_prompts_matches_the_reference(lengths, prefixes, _, dtype, silu):
    rng = seeded(sum(lengths) + silu)
    batch = ragged_batch(lengths, prefixes, rng)
    snapshots = random_snapshots(batch, 8, rng)
    channels, width = (130, 4) if silu else (9, 3)
    x = torch.randn(batch.tokens, channels + 5).to(dtype)[:, 2 : channels + 2]
    weight, bias = torch.randn(channels, width), torch.randn(channels) if silu else None
    expected_pool = poisoned_pool(batch, (channels, width - 1), dtype)
    pool = here(expected_pool)
    tiles = planned(conv1d.conv_tiles, here(batch.rows), snapshots)
    y = conv1d.causal_conv1d_prompts(here(x), here(weight), here(bias), pool, tiles, silu)
    expected = causal_conv1d_varlen_ref(
        x, weight, bias, conv_pool=expected_pool, snapshots=snapshots, silu=silu,
        **lens_and_slots(batch),
    )  # fmt: skip
    assert_near(y, expected, BOUND[dtype])
    assert_pools_near(pool, expected_pool, 1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_decode_step_matches_the_reference(dtype):
    rng = seeded(5)
    batch = ragged_batch([1] * 4, [7, 0, 3, 0], rng)
    inputs = scan_inputs(4, 4, 2, 5, 7, dtype)
    expected_pool = poisoned_pool(batch, (4, 5, 7), torch.float32)
    slots = {"read_slots": batch.read_slots, "write_slots": batch.write_slots}
    slots["has_initial"] = batch.has_initial
    pool = here(expected_pool)
    y = state_update.selective_state_update(
        **here(inputs), **here(slots), dt_limit=(0.0, 2.0), ssm_pool=pool
    )
    expected = selective_state_update_ref(
        **inputs, **slots, dt_limit=(0.0, 2.0), ssm_pool=expected_pool
    )
    assert_near(y, expected, BOUND[dtype])
    assert_pools_near(pool, expected_pool, BOUND[torch.float32])


def mixer_weights(normed: bool, gate_last: bool) -> Mamba2Weights:
    heads, head_dim, groups, state, width = 4, 6, 2, 7, 4
    channels = heads * head_dim + 2 * groups * state
    return Mamba2Weights(
        torch.randn(channels, width), torch.randn(channels), -torch.rand(heads) - 0.1,
        torch.randn(heads), torch.randn(heads), torch.randn(heads * head_dim) if normed else None,
        head_dim, groups, state, 1e-5, (0.0, float("inf")), gate_last,
    )  # fmt: skip


@pytest.mark.parametrize("normed, gate_last", [(True, False), (True, True), (False, False)])
def test_a_mixer_equals_torchs_at_prompts_and_at_decode(normed, gate_last):
    """Padding rows too: they share slot 0, and other rows hear nothing of them."""
    rng = seeded(6)
    weights = mixer_weights(normed, gate_last)
    batch = ragged_batch([20, 3], [0, 5], rng)
    channels, width = weights.conv_weight.shape
    heads, state = (4, 6, 7), (channels, width - 1)
    conv, ssm = (poisoned_pool(batch, shape, torch.float32) for shape in (state, heads))
    own_conv, own_ssm = here(conv), here(ssm)
    tokens = torch.randn(batch.tokens, sum(weights.splits))
    rows = batch.rows
    snapshots = SnapshotPlan((0,), (16,), (batch.spare_slots[0],))
    plan = planned(mamba2.plan_mamba2_prefill, here(rows), width, 16, snapshots)
    y = plan(here(weights), here(tokens), own_conv, own_ssm)
    plan = planned(torch_mamba2.plan_mamba2_prefill, rows, width, 16, snapshots)
    assert_near(y, plan(weights, tokens, conv, ssm), 2e-5)
    tokens = torch.randn(4, tokens.shape[1])
    slots = torch.cat((batch.write_slots, torch.zeros(2, dtype=torch.int64)))
    for _ in range(2):
        y = mamba2.mamba2_step(
            here(weights), here(tokens), own_conv, own_ssm, here(slots), here(slots)
        )
        expected = torch_mamba2.mamba2_step(weights, tokens[:2], conv, ssm, slots[:2], slots[:2])
        assert_near(y[:2], expected, 2e-5)
    assert_pools_near(own_conv[1:], conv[1:], 2e-5)
    assert_pools_near(own_ssm[1:], ssm[1:], 2e-5)
