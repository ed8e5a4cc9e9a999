"""Prompts through a gated-delta mixer, by torch and by the native library, against float64."""

import dataclasses
import random

import pytest
import torch
import torch.nn.functional as F
from kernels.native_cases import PoisonedNative
from kernels.test_native_delta import random_inputs, random_mixer
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
from baton.kernels.delta_mixer import (
    DeltaInputs,
    DeltaWeights,
    gated_delta_step_native,
    plan_delta_prefill,
    plan_delta_prefill_native,
)
from baton.kernels.gated_delta import CHUNK, gated_delta_prefill_ref
from baton.kernels.native.library import load
from baton.kernels.native.recorder import Native

CPU = torch.device("cpu")


@pytest.fixture
def rng() -> random.Random:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    return seeded(seed)


def native() -> Native:
    library = load()
    if library is None:
        pytest.skip("no C++ compiler")
    return PoisonedNative(library)


def torch_plan(batch: RaggedBatch, width: int, snapshots: SnapshotPlan | None = None):
    lens = (batch.cu_seqlens_host, batch.prefix_lens_host)
    return plan_delta_prefill(*lens, width, snapshots).on(CPU)(batch.rows)


def native_plan(batch: RaggedBatch, width: int, snapshots: SnapshotPlan | None = None):
    lens = (batch.cu_seqlens_host, batch.prefix_lens_host)
    return plan_delta_prefill_native(native(), *lens, width, snapshots).on(CPU)(batch.rows)


every_plan = pytest.mark.parametrize("plan", [torch_plan, native_plan])
every_decay = pytest.mark.parametrize("channelwise", [False, True])


def mixer(sizes: tuple[int, ...], channelwise: bool, rng: random.Random) -> DeltaWeights:
    """sizes: heads of keys, heads of values, channels of each."""
    weights = random_mixer((sizes[1], *sizes[1:]) if channelwise else sizes, channelwise, rng)
    # A head whose output is all but zero would magnify rounding a thousandfold at 1e-6.
    return dataclasses.replace(weights, eps=1e-2)


def pools_of(
    batch: RaggedBatch, weights: DeltaWeights, conv=torch.float32, state=torch.float32
) -> tuple[Tensor, Tensor]:
    channels, width = weights.conv_weight.shape
    shape = (weights.heads, weights.key_dim, weights.value_dim)
    return poisoned_pool(batch, (channels, width - 1), conv), poisoned_pool(batch, shape, state)


def keep_from_zero(weights: DeltaWeights, inputs: DeltaInputs, conv_pool: Tensor) -> None:
    """Make all queries and keys positive. One of a single channel is all but zero once in some
    hundred tokens, where unit length magnifies rounding a thousandfold."""
    channels = 2 * weights.key_heads * weights.key_dim
    inputs.qkv[:, :channels].abs_().add_(0.1)
    weights.conv_weight[:channels].abs_().add_(0.1)
    conv_pool[:, :channels].abs_()


def reference(weights, inputs, conv_pool, state_pool, batch, snapshots=None) -> Tensor:
    """Token by token in float64; writes the pools in their own dtype."""
    lens = (batch.cu_seqlens_host, batch.prefix_lens_host)
    slots = (batch.read_slots, batch.write_slots, batch.has_initial)
    conv = causal_conv1d_varlen_ref(
        inputs.qkv.double(), weights.conv_weight.double(), None, batch.cu_seqlens, *lens,
        conv_pool, *slots, snapshots,
    )  # fmt: skip
    q, k, v = weights.split_conv(conv)
    step = F.softplus(inputs.a.double() + weights.dt_bias.double())
    g = step.unflatten(1, (weights.heads, -1)) * weights.A.double()[:, None]
    if weights.dt_bias.shape[0] == weights.heads:
        g = g[:, :, 0]
    beta, z = inputs.b.double().sigmoid(), inputs.z.double()
    o = gated_delta_prefill_ref(q, k, v, g, beta, *lens, state_pool, *slots, snapshots)
    normed = o * torch.rsqrt(o.square().mean(dim=2, keepdim=True) + weights.eps)
    gate = F.silu(z) if weights.silu_gate else z.sigmoid()
    return (normed * weights.norm_weight.double()).flatten(1) * gate


def assert_close_to_scale(y: Tensor, expected: Tensor, error: float) -> None:
    assert y.dtype == torch.float32
    scale = max(1.0, float(expected.abs().max())) if expected.numel() else 1.0
    torch.testing.assert_close(y.double(), expected, atol=error * scale, rtol=0)


SIZES = [(1, 1, 1, 1), (2, 6, 5, 7), (1, 2, 16, 64), (3, 3, 33, 100), (2, 4, 136, 34)]
RAGGED = [
    ([1], [0]),
    ([70], [5]),
    ([33, 1, 0, 2, 150, 64], [0, 63, 4, 0, 50, 64]),
    ([0, 17, 16], [9, 0, 48]),
]


@every_plan
@every_decay
@pytest.mark.parametrize("lengths, prefixes", RAGGED)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_outputs_states_windows_and_snapshots_match_the_reference(
    rng, plan, channelwise, lengths, prefixes, sizes
):
    weights = mixer(sizes, channelwise, rng)
    batch = ragged_batch(lengths, prefixes, rng)
    snapshots = random_snapshots(batch, CHUNK, rng)
    inputs = random_inputs(batch.tokens, weights, rng)
    pools = pools_of(batch, weights)
    if weights.key_dim == 1:
        keep_from_zero(weights, inputs, pools[0])
    expected_pools = cloned(pools)
    y = plan(batch, weights.conv_weight.shape[1], snapshots)(weights, inputs, *pools)
    expected = reference(weights, inputs, *expected_pools, batch, snapshots)
    assert_close_to_scale(y, expected, 1e-4)
    assert_pools_match(pools[0], expected_pools[0], 0.0, 0.0)
    assert_pools_match(pools[1], expected_pools[1], 2e-5, 2e-5)


@every_plan
@every_decay
def test_pools_keep_their_own_dtypes(rng, plan, channelwise):
    weights = mixer((2, 4, 16, 40), channelwise, rng)
    batch = ragged_batch([40, 7], [0, 32], rng)
    inputs = random_inputs(batch.tokens, weights, rng)
    pools = pools_of(batch, weights, torch.bfloat16, torch.bfloat16)
    expected_pools = cloned(pools)
    y = plan(batch, weights.conv_weight.shape[1])(weights, inputs, *pools)
    expected = reference(weights, inputs, *expected_pools, batch)
    assert_close_to_scale(y, expected, 1e-4)
    assert_pools_match(pools[0], expected_pools[0], 0.0, 2**-7)
    assert_pools_match(pools[1], expected_pools[1], 2e-5, 2**-7)


@every_plan
@every_decay
def test_a_prompt_cut_on_the_grid_equals_the_whole_bit_for_bit(rng, plan, channelwise):
    weights = mixer((2, 4, 24, 40), channelwise, rng)
    width, total, cuts = weights.conv_weight.shape[1], 301, [64, 192, 256]
    inputs = random_inputs(total, weights, rng)
    whole = ragged_batch([total], [0], rng)
    pools = pools_of(whole, weights)
    y = plan(whole, width)(weights, inputs, *pools)
    outputs, kept = [], None
    for start, end in zip([0, *cuts], [*cuts, total], strict=True):
        # Mixed with another row, so that the batch is not the same either.
        piece = ragged_batch([37, end - start], [0, start], rng)
        mixed = concat(random_inputs(37, weights, rng), inputs.tokens(slice(start, end)))
        piece_pools = pools_of(piece, weights)
        if kept is not None:
            for pool, state in zip(piece_pools, kept, strict=True):
                pool[piece.read_slots[1]] = state
        outputs.append(plan(piece, width)(weights, mixed, *piece_pools)[37:])
        kept = [pool[piece.write_slots[1]].clone() for pool in piece_pools]
    assert torch.equal(torch.cat(outputs), y)
    assert kept is not None
    for pool, state in zip(pools, kept, strict=True):
        assert torch.equal(pool[whole.write_slots[0]], state)


def concat(first: DeltaInputs, then: DeltaInputs) -> DeltaInputs:
    pairs = zip(vars(first).values(), vars(then).values(), strict=True)
    return DeltaInputs(*(torch.cat(pair) for pair in pairs))


@every_plan
@every_decay
def test_a_snapshot_resumed_equals_the_run_that_it_was_taken_from(rng, plan, channelwise):
    weights = mixer((1, 2, 20, 36), channelwise, rng)
    width, inputs = weights.conv_weight.shape[1], random_inputs(150, weights, rng)
    whole = ragged_batch([150], [0], rng)
    pools = pools_of(whole, weights)
    snapshots = SnapshotPlan((0,), (128,), (whole.spare_slots[0],))
    y = plan(whole, width, snapshots)(weights, inputs, *pools)
    tail = ragged_batch([22], [128], rng)
    tail_pools = pools_of(tail, weights)
    for pool, kept in zip(tail_pools, pools, strict=True):
        pool[tail.read_slots[0]] = kept[snapshots.slots[0]]
    rest = plan(tail, width)(weights, inputs.tokens(slice(128, None)), *tail_pools)
    assert torch.equal(rest, y[128:])


@every_plan
@every_decay
def test_a_poisoned_row_does_not_reach_its_neighbours(rng, plan, channelwise):
    weights = mixer((2, 2, 16, 40), channelwise, rng)
    width = weights.conv_weight.shape[1]
    batch = ragged_batch([40, 23, 5, 50], [0, 0, 1, 3], rng)
    inputs = random_inputs(batch.tokens, weights, rng)
    clean = pools_of(batch, weights)
    pools = [pool.clone() for pool in clean]
    wanted = plan(batch, width)(weights, inputs, *clean)
    for tensor in vars(inputs).values():
        tensor[40:63] = torch.nan
    y = plan(batch, width)(weights, inputs, *pools)
    assert torch.equal(y[:40], wanted[:40]) and torch.equal(y[63:], wanted[63:])
    assert y[40:63].isnan().all()
    others = batch.write_slots[[0, 2, 3]]
    for pool, expected in zip(pools, clean, strict=True):
        assert torch.equal(pool[others], expected[others])


@every_plan
@every_decay
@pytest.mark.parametrize("scale", [0.0, 1.0, 3000.0])
def test_neither_no_decay_nor_a_total_one_loses_precision(rng, plan, channelwise, scale):
    weights = mixer((2, 2, 16, 24), channelwise, rng)
    weights = dataclasses.replace(weights, A=weights.A * scale)
    batch = ragged_batch([130], [0], rng)
    inputs = random_inputs(130, weights, rng)
    inputs.b[:] = 30.0  # all is written
    inputs.a[::3] = -12.0  # some tokens forget little after others that forget all
    pools = pools_of(batch, weights)
    expected_pools = cloned(pools)
    y = plan(batch, weights.conv_weight.shape[1])(weights, inputs, *pools)
    expected = reference(weights, inputs, *expected_pools, batch)
    assert_close_to_scale(y, expected, 2e-4)
    assert_pools_match(pools[1], expected_pools[1], 2e-5, 2e-5)


@every_decay
def test_rows_are_the_same_bits_on_every_number_of_threads(rng, channelwise):
    weights = mixer((8, 16, 64, 72), channelwise, rng)  # some milliseconds: all threads take part
    batch = ragged_batch([200, 1, 33, 0, 150], [0, 64, 7, 3, 0], rng)
    inputs = random_inputs(batch.tokens, weights, rng)
    snapshots = random_snapshots(batch, CHUNK, rng)
    plan = native_plan(batch, weights.conv_weight.shape[1], snapshots)
    threads, results, before = torch.get_num_threads(), [], pools_of(batch, weights)
    try:
        for count in (1, 2, 6):
            torch.set_num_threads(count)
            pools = [pool.clone() for pool in before]
            results.append((plan(weights, inputs, *pools), *pools))
    finally:
        torch.set_num_threads(threads)
    for result in results[1:]:
        for one, other in zip(result, results[0], strict=True):
            torch.testing.assert_close(one, other, atol=0, rtol=0, equal_nan=True)


def test_padding_rows_change_no_other(rng):
    weights = mixer((2, 4, 16, 40), False, rng)
    width = weights.conv_weight.shape[1]
    batch = ragged_batch([20, 0, 9], [0, 0, 3], rng)
    inputs = random_inputs(batch.tokens, weights, rng)
    padding = dataclasses.replace(
        batch,
        read_slots=batch.read_slots.index_fill(0, torch.tensor([1]), 0),
        write_slots=batch.write_slots.index_fill(0, torch.tensor([1]), 0),
    )
    clean = pools_of(batch, weights)
    pools = [pool.clone() for pool in clean]
    wanted = native_plan(batch, width)(weights, inputs, *clean)
    assert torch.equal(native_plan(padding, width)(weights, inputs, *pools), wanted)
    others = batch.write_slots[[0, 2]]
    for pool, expected in zip(pools, clean, strict=True):
        assert torch.equal(pool[others], expected[others])


@every_decay
def test_a_slot_s_next_row_sees_nothing_of_the_last_and_decode_goes_on_from_it(rng, channelwise):
    weights = mixer((2, 2, 16, 40), channelwise, rng)
    width, inputs = weights.conv_weight.shape[1], random_inputs(41, weights, rng)
    whole, start = ragged_batch([41], [0], rng), ragged_batch([40], [0], rng)
    pools, live = pools_of(whole, weights), pools_of(start, weights)
    y = native_plan(whole, width)(weights, inputs, *pools)
    plan = native_plan(start, width)
    for _ in range(2):  # the second time over what the first has left
        outputs = plan(weights, inputs.tokens(slice(40)), *live)
    assert torch.equal(outputs, y[:40])
    slots = (start.write_slots, start.write_slots)
    last = inputs.tokens(slice(40, None))
    token = gated_delta_step_native(native(), weights, last, *live, *slots)
    assert_close_to_scale(token, y[40:].double(), 1e-4)
    for one, other in zip(live, pools, strict=True):
        torch.testing.assert_close(
            one[start.write_slots], other[whole.write_slots], atol=2e-5, rtol=2e-5
        )


def test_a_snapshot_off_the_grid_is_refused(rng):
    batch = ragged_batch([100], [0], rng)
    snapshots = SnapshotPlan((0,), (40,), (batch.spare_slots[0],))
    for plan in (torch_plan, native_plan):
        with pytest.raises(ValueError, match="chunk"):
            plan(batch, 4, snapshots)
