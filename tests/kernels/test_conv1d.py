"""The ragged convolution against its token-by-token reference: outputs, windows, snapshots."""

import random

import pytest
import torch
from kernels.native_cases import PoisonedNative, assert_near, strided
from ragged_batches import (
    assert_pools_match,
    poisoned_pool,
    ragged_batch,
    random_snapshots,
    seeded,
)
from torch import Tensor

from baton.kernels.chunks import SnapshotPlan
from baton.kernels.conv1d import (
    causal_conv1d_update,
    causal_conv1d_varlen,
    causal_conv1d_varlen_ref,
    conv_index,
    gated_conv_step_native,
    plan_gated_conv_prefill,
    plan_gated_conv_prefill_native,
)
from baton.kernels.native.library import load

RAGGED = [
    ([1], [0]),
    ([7, 1, 2, 3, 40], [0, 5, 0, 64, 1]),
    ([2, 2, 1, 1], [1, 2, 3, 0]),  # every row shorter than its window
    ([0, 0], [3, 0]),
    ([0, 5, 0], [9, 0, 0]),  # rows without a token keep the state they came with
]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("lengths, prefixes", RAGGED)
def test_outputs_windows_and_snapshots_match_the_reference(lengths, prefixes, width, seed):
    rng = seeded(seed)
    channels = rng.choice([5, 24, 37])
    batch = ragged_batch(lengths, prefixes, rng)
    snapshots = random_snapshots(batch, 1, rng)
    x = torch.randn(batch.tokens, channels)
    weight, bias = torch.randn(channels, width), torch.randn(channels) if seed % 2 else None
    pool = poisoned_pool(batch, (channels, width - 1), torch.float32)
    expected_pool = pool.clone()
    slots = (batch.read_slots, batch.write_slots, batch.has_initial)
    lens = (batch.cu_seqlens, batch.cu_seqlens_host, batch.prefix_lens_host)
    silu = seed != 2
    y = causal_conv1d_varlen(x, weight, bias, *lens, pool, *slots, snapshots=snapshots, silu=silu)
    expected = causal_conv1d_varlen_ref(
        x, weight, bias, *lens, expected_pool, *slots, snapshots=snapshots, silu=silu
    )
    torch.testing.assert_close(y.double(), expected, atol=1e-5, rtol=1e-5)
    assert_pools_match(pool, expected_pool, atol=0.0, rtol=0.0)


def test_bfloat16_inputs_are_summed_in_float32():
    rng = seeded(11)
    batch = ragged_batch([9, 1, 17], [0, 3, 0], rng)
    x, weight = torch.randn(batch.tokens, 12).bfloat16(), torch.randn(12, 4).bfloat16()
    pool = poisoned_pool(batch, (12, 3), torch.bfloat16)
    expected_pool = pool.clone()
    rows = (batch.read_slots, batch.write_slots, batch.has_initial)
    lens = (batch.cu_seqlens, batch.cu_seqlens_host, batch.prefix_lens_host)
    y = causal_conv1d_varlen(x, weight, None, *lens, pool, *rows)
    expected = causal_conv1d_varlen_ref(x, weight, None, *lens, expected_pool, *rows)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, expected.bfloat16(), atol=1e-6, rtol=2**-7)
    assert_pools_match(pool, expected_pool, atol=0.0, rtol=0.0)


@pytest.mark.parametrize("has_initial_given", [True, False])
def test_an_update_is_a_ragged_call_with_one_token_a_row(has_initial_given):
    rng = seeded(5)
    prefixes = [4, 0, 8, 1] if has_initial_given else [4, 3, 8, 1]
    batch = ragged_batch([1, 1, 1, 1], prefixes, rng)
    x, weight, bias = torch.randn(4, 19), torch.randn(19, 4), torch.randn(19)
    pool = poisoned_pool(batch, (19, 3), torch.float32)
    expected_pool = pool.clone()
    slots = (batch.read_slots, batch.write_slots)
    y = causal_conv1d_update(
        x, weight, bias, pool, *slots, batch.has_initial if has_initial_given else None
    )
    lens = (batch.cu_seqlens, batch.cu_seqlens_host, batch.prefix_lens_host)
    expected = causal_conv1d_varlen_ref(
        x, weight, bias, *lens, expected_pool, *slots, batch.has_initial
    )
    torch.testing.assert_close(y.double(), expected, atol=1e-5, rtol=1e-5)
    assert_pools_match(pool, expected_pool, atol=0.0, rtol=0.0)


def test_an_index_built_once_gives_what_the_call_would_build():
    rng = seeded(7)
    batch = ragged_batch([5, 12], [0, 2], rng)
    snapshots = random_snapshots(batch, 1, rng)
    x, weight = torch.randn(batch.tokens, 6), torch.randn(6, 4)
    pool = poisoned_pool(batch, (6, 3), torch.float32)
    other = pool.clone()
    lens = (batch.cu_seqlens, batch.cu_seqlens_host, batch.prefix_lens_host)
    rows = (batch.read_slots, batch.write_slots, batch.has_initial)
    plan = conv_index(batch.cu_seqlens_host, batch.prefix_lens_host, 4, snapshots)
    index = plan.on(torch.device("cpu"))
    y = causal_conv1d_varlen(x, weight, None, *lens, pool, *rows, index=index)
    expected = causal_conv1d_varlen(x, weight, None, *lens, other, *rows, snapshots)
    assert torch.equal(y, expected)
    assert_pools_match(pool, other, atol=0.0, rtol=0.0)


@pytest.mark.parametrize("depth", [8, 20])
def test_a_snapshot_outside_its_row_is_refused_with_the_depths_that_it_has(depth):
    plan = SnapshotPlan(rows=(1,), depths=(depth,), slots=(3,))
    with pytest.raises(ValueError, match="computes depths 9 to 19"):
        conv_index([0, 4, 15], [0, 8], 4, plan)


def test_the_padding_slot_is_refused_as_a_destination():
    with pytest.raises(ValueError, match="slot 0"):
        SnapshotPlan(rows=(0,), depths=(4,), slots=(0,))


def gated_by_torch(batch, *arguments):
    lens = (batch.cu_seqlens_host, batch.prefix_lens_host)
    return plan_gated_conv_prefill(*lens, *arguments).on(torch.device("cpu"))(batch.rows)


def gated_natively(batch, *arguments):
    library = load()
    if library is None:
        pytest.skip("no C++ compiler")
    lens = (batch.cu_seqlens_host, batch.prefix_lens_host)
    plan = plan_gated_conv_prefill_native(PoisonedNative(library), *lens, *arguments)
    return plan.on(torch.device("cpu"))(batch.rows)


every_gated = pytest.mark.parametrize("plan", [gated_by_torch, gated_natively])


@every_gated
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("channels, width", [(1, 2), (37, 3), (300, 4), (530, 5)])
@pytest.mark.parametrize(
    "lengths, prefixes", [*RAGGED, ([70, 0, 200], [3, 2, 0]), ([63, 40], [2, 5])]
)
@pytest.mark.parametrize("gated", [True, False])
def test_a_gated_convolution_of_prompts(plan, dtype, channels, width, lengths, prefixes, gated):
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = seeded(seed)
    batch = ragged_batch(lengths, prefixes, rng)
    snapshots = random_snapshots(batch, 1, rng)
    bcx = strided(batch.tokens, (3 if gated else 1) * channels, rng)
    weight = torch.randn(channels, width)
    bias = torch.randn(channels) if rng.random() < 0.5 else None
    pool = poisoned_pool(batch, (channels, width - 1), dtype)
    expected_pool = pool.clone()
    y = plan(batch, width, snapshots)(bcx, weight, bias, pool)
    before, after, x = bcx.chunk(3, dim=1) if gated else (1.0, torch.ones(1), bcx)
    lens = (batch.cu_seqlens, batch.cu_seqlens_host, batch.prefix_lens_host)
    slots = (batch.read_slots, batch.write_slots, batch.has_initial)
    summed = causal_conv1d_varlen_ref(
        before * x, weight, bias, *lens, expected_pool, *slots, snapshots=snapshots, silu=False
    )
    assert_near(y, after.double() * summed, 2e-6)
    assert_pools_match(pool, expected_pool, 0.0, 0.0)


def test_gated_convolutions_of_prompts_are_the_same_bits_on_every_number_of_threads():
    rng = seeded(12)
    batch = ragged_batch([70, 1, 140], [0, 5, 2], rng)
    bcx, weight = torch.randn(batch.tokens, 3 * 2100), torch.randn(2100, 3)
    before = poisoned_pool(batch, (2100, 2), torch.float32)
    plan = gated_natively(batch, 3, None)
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 6):
            torch.set_num_threads(count)
            pool = before.clone()
            results.append((plan(bcx, weight, None, pool), pool))
    finally:
        torch.set_num_threads(threads)
    for y, pool in results[1:]:
        assert torch.equal(y, results[0][0])
        torch.testing.assert_close(pool, results[0][1], atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize("channels, width", [(1, 2), (37, 3), (300, 4), (530, 5)])
def test_tokens_one_by_one_have_the_bits_of_a_prompt(native, rng, channels, width):
    batch = ragged_batch([70], [rng.choice([0, 5])], rng)
    bcx = strided(batch.tokens, 3 * channels, rng)
    weight = torch.randn(channels, width)
    bias = torch.randn(channels) if rng.random() < 0.5 else None
    pool = poisoned_pool(batch, (channels, width - 1), torch.float32)
    stepped_pool = pool.clone()
    y = gated_natively(batch, width, None)(bcx, weight, bias, pool).clone()
    slots = (batch.read_slots, batch.write_slots)
    initial: Tensor | None = batch.has_initial
    steps = []
    for token in range(batch.tokens):
        one = bcx[token : token + 1]
        stepped = gated_conv_step_native(native, one, weight, bias, stepped_pool, *slots, initial)
        steps.append(stepped.clone())
        slots, initial = (batch.write_slots, batch.write_slots), None
    assert torch.equal(torch.cat(steps), y)
    assert_pools_match(stepped_pool, pool, 0.0, 0.0)
