"""The chunked scan and the decode update against token-by-token float64 recurrences."""

from dataclasses import dataclass

import pytest
import torch
from ragged_batches import (
    RaggedBatch,
    assert_pools_match,
    poisoned_pool,
    ragged_batch,
    random_snapshots,
    seeded,
)
from torch import Tensor

from baton.kernels.chunks import SnapshotPlan
from baton.kernels.ssd import discretise, ssd_index, ssd_prefill, ssd_prefill_ref
from baton.kernels.state_update import selective_state_update, selective_state_update_ref

LIMIT = (0.0, float("inf"))


@dataclass(frozen=True)
class Layer:
    A: Tensor
    D: Tensor
    dt_bias: Tensor
    groups: int
    head_dim: int
    state: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.A.shape[0], self.head_dim, self.state


def random_layer(heads: int, groups: int, head_dim: int, state: int) -> Layer:
    A = -torch.rand(heads) * 8 - 0.1
    return Layer(A, torch.randn(heads), torch.randn(heads) - 2, groups, head_dim, state)


def random_tokens(layer: Layer, tokens: int) -> dict[str, Tensor]:
    heads, head_dim, state = layer.shape
    return {
        "x": torch.randn(tokens, heads, head_dim),
        "dt": torch.randn(tokens, heads),
        "B": torch.randn(tokens, layer.groups, state),
        "C": torch.randn(tokens, layer.groups, state),
    }


def scan(function, layer: Layer, inputs: dict[str, Tensor], batch: RaggedBatch, pool, **more):
    options = {"dt_limit": LIMIT, "chunk_size": 32, **more}
    return function(
        **inputs,
        A=layer.A,
        D=layer.D,
        dt_bias=layer.dt_bias,
        cu_seqlens=batch.cu_seqlens,
        cu_seqlens_host=batch.cu_seqlens_host,
        prefix_lens_host=batch.prefix_lens_host,
        ssm_pool=pool,
        read_slots=batch.read_slots,
        write_slots=batch.write_slots,
        has_initial=batch.has_initial,
        **options,
    )


RAGGED = [
    ([1], [0]),
    ([70], [0]),
    ([33, 1, 64, 5, 100], [0, 31, 32, 45, 7]),  # prefixes off the chunk grid
    ([1, 1, 1], [0, 32, 33]),
    ([0, 0], [3, 0]),
    ([0, 40, 0], [9, 0, 0]),  # rows without a token keep the state they came with
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("lengths, prefixes", RAGGED)
@pytest.mark.parametrize("heads, groups, head_dim, state", [(3, 1, 5, 7), (6, 2, 8, 16)])
def test_outputs_states_and_snapshots_match_the_reference(
    lengths, prefixes, heads, groups, head_dim, state, seed
):
    rng = seeded(seed)
    layer = random_layer(heads, groups, head_dim, state)
    batch = ragged_batch(lengths, prefixes, rng)
    snapshots = random_snapshots(batch, 32, rng)
    inputs = random_tokens(layer, batch.tokens)
    limit = (0.01, 0.5) if seed == 1 else LIMIT
    pool = poisoned_pool(batch, layer.shape, torch.float32)
    expected_pool = pool.clone()
    more = {"snapshots": snapshots, "dt_limit": limit}
    y = scan(ssd_prefill, layer, inputs, batch, pool, **more)
    expected = scan(ssd_prefill_ref, layer, inputs, batch, expected_pool, **more)
    torch.testing.assert_close(y.double(), expected, atol=2e-5, rtol=2e-5)
    assert_pools_match(pool, expected_pool, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("chunk_size", [16, 48, 64, 256])
def test_the_chunk_size_changes_no_result(chunk_size):
    rng = seeded(chunk_size)
    layer = random_layer(4, 2, 6, 10)
    batch = ragged_batch([300, 90, 17], [0, chunk_size, 100], rng)
    snapshots = SnapshotPlan((0, 1), (chunk_size, chunk_size + 90), tuple(batch.spare_slots[:2]))
    inputs = random_tokens(layer, batch.tokens)
    pool = poisoned_pool(batch, layer.shape, torch.float32)
    expected_pool = pool.clone()
    more = {"snapshots": snapshots, "chunk_size": chunk_size}
    y = scan(ssd_prefill, layer, inputs, batch, pool, **more)
    expected = scan(ssd_prefill_ref, layer, inputs, batch, expected_pool, **more)
    torch.testing.assert_close(y.double(), expected, atol=2e-5, rtol=2e-5)
    assert_pools_match(pool, expected_pool, atol=1e-5, rtol=1e-5)


def test_large_steps_neither_overflow_nor_lose_the_small_ones():
    rng = seeded(3)
    layer = random_layer(3, 1, 4, 6)
    batch = ragged_batch([128], [0], rng)
    inputs = random_tokens(layer, batch.tokens)
    inputs["dt"] = inputs["dt"] * 30  # log-decays of a chunk run past -1000
    pool = poisoned_pool(batch, layer.shape, torch.float32)
    expected_pool = pool.clone()
    y = scan(ssd_prefill, layer, inputs, batch, pool, chunk_size=64)
    expected = scan(ssd_prefill_ref, layer, inputs, batch, expected_pool)
    scale = expected.abs().max().item()
    torch.testing.assert_close(y.double(), expected, atol=1e-4 * scale, rtol=1e-4)
    assert_pools_match(pool, expected_pool, atol=1e-4 * scale, rtol=1e-4)


def test_a_poisoned_row_does_not_reach_its_neighbours():
    rng = seeded(4)
    layer = random_layer(3, 1, 4, 6)
    batch = ragged_batch([40, 23, 50], [0, 0, 3], rng)
    inputs = random_tokens(layer, batch.tokens)
    pool = poisoned_pool(batch, layer.shape, torch.float32)
    expected_pool = pool.clone()
    expected = scan(ssd_prefill, layer, inputs, batch, expected_pool)
    for tensor in inputs.values():
        tensor[40:63] = torch.nan
    y = scan(ssd_prefill, layer, inputs, batch, pool)
    assert torch.equal(y[:40], expected[:40]) and torch.equal(y[63:], expected[63:])
    others = batch.write_slots[[0, 2]]
    assert torch.equal(pool[others], expected_pool[others])


@pytest.mark.parametrize("chunk_size, cuts", [(64, [64, 192, 256]), (256, [256]), (32, [32, 64])])
def test_a_prefill_cut_on_the_grid_equals_the_whole_bit_for_bit(chunk_size, cuts):
    rng = seeded(chunk_size)
    layer = random_layer(6, 2, 16, 32)
    total = 301
    inputs = random_tokens(layer, total)
    whole = ragged_batch([total], [0], rng)
    pool = poisoned_pool(whole, layer.shape, torch.float32)
    y = scan(ssd_prefill, layer, inputs, whole, pool, chunk_size=chunk_size)
    outputs = []
    cut_pool = torch.full_like(pool, torch.nan)
    for start, end in zip([0, *cuts], [*cuts, total], strict=True):
        # Mixed with another row, so that the batch is not the same either.
        piece = ragged_batch([37, end - start], [0, start], rng)
        neighbour = random_tokens(layer, 37)
        mixed = {name: torch.cat((neighbour[name], inputs[name][start:end])) for name in inputs}
        piece_pool = poisoned_pool(piece, layer.shape, torch.float32)
        if start:
            piece_pool[piece.read_slots[1]] = cut_pool[0]
        outputs.append(
            scan(ssd_prefill, layer, mixed, piece, piece_pool, chunk_size=chunk_size)[37:]
        )
        cut_pool[0] = piece_pool[piece.write_slots[1]]
    assert torch.equal(torch.cat(outputs), y)
    assert torch.equal(cut_pool[0], pool[whole.write_slots[0]])


def test_a_snapshot_resumed_equals_the_run_that_it_was_taken_from():
    rng = seeded(6)
    layer = random_layer(5, 1, 8, 12)
    inputs = random_tokens(layer, 150)
    whole = ragged_batch([150], [0], rng)
    pool = poisoned_pool(whole, layer.shape, torch.float32)
    snapshots = SnapshotPlan((0,), (96,), (whole.spare_slots[0],))
    y = scan(ssd_prefill, layer, inputs, whole, pool, snapshots=snapshots)
    tail = ragged_batch([54], [96], rng)
    tail_pool = poisoned_pool(tail, layer.shape, torch.float32)
    tail_pool[tail.read_slots[0]] = pool[snapshots.slots[0]]
    rest = {name: tensor[96:] for name, tensor in inputs.items()}
    assert torch.equal(scan(ssd_prefill, layer, rest, tail, tail_pool), y[96:])


def test_an_index_built_once_gives_what_the_call_would_build():
    rng = seeded(8)
    layer = random_layer(2, 1, 4, 4)
    batch = ragged_batch([80, 20], [0, 5], rng)
    snapshots = random_snapshots(batch, 32, rng)
    inputs = random_tokens(layer, batch.tokens)
    pool = poisoned_pool(batch, layer.shape, torch.float32)
    other = pool.clone()
    lens = (batch.cu_seqlens_host, batch.prefix_lens_host)
    index = ssd_index(*lens, 32, snapshots).on(torch.device("cpu"))
    y = scan(ssd_prefill, layer, inputs, batch, pool, index=index)
    assert torch.equal(y, scan(ssd_prefill, layer, inputs, batch, other, snapshots=snapshots))
    assert_pools_match(pool, other, atol=0.0, rtol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_pool_keeps_its_own_dtype(dtype):
    rng = seeded(9)
    layer = random_layer(3, 1, 4, 6)
    batch = ragged_batch([40, 7], [0, 32], rng)
    inputs = {name: t.bfloat16() for name, t in random_tokens(layer, batch.tokens).items()}
    pool = poisoned_pool(batch, layer.shape, dtype)
    expected_pool = pool.clone()
    y = scan(ssd_prefill, layer, inputs, batch, pool)
    expected = scan(ssd_prefill_ref, layer, inputs, batch, expected_pool)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, expected.bfloat16(), atol=1e-4, rtol=2**-7)
    tolerance = 1e-5 if dtype == torch.float32 else 2**-7
    assert_pools_match(pool, expected_pool, atol=1e-5, rtol=tolerance)


@pytest.mark.parametrize("tokens", [1, 5, 13, 40])
def test_a_step_size_does_not_depend_on_how_many_are_computed(tokens):
    seeded(tokens)
    dt, dt_bias = torch.randn(200, 3) * 4, torch.randn(3)
    together = discretise(dt, dt_bias, LIMIT)
    assert torch.equal(discretise(dt[:tokens].clone(), dt_bias, LIMIT), together[:tokens])
    exact = torch.nn.functional.softplus(dt.double() + dt_bias.double())
    torch.testing.assert_close(together.double(), exact, atol=0.0, rtol=1e-6)


def step(function, layer: Layer, inputs: dict[str, Tensor], batch: RaggedBatch, pool, has_initial):
    return function(
        ssm_pool=pool,
        read_slots=batch.read_slots,
        write_slots=batch.write_slots,
        **inputs,
        A=layer.A,
        D=layer.D,
        dt_bias=layer.dt_bias,
        dt_limit=(0.0, 2.0),
        has_initial=has_initial,
    )


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("heads, groups, head_dim, state", [(3, 1, 5, 7), (6, 2, 8, 16)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_decode_step_matches_the_reference(rows, heads, groups, head_dim, state, dtype):
    rng = seeded(rows)
    layer = random_layer(heads, groups, head_dim, state)
    batch = ragged_batch([1] * rows, [rng.choice([0, 7]) for _ in range(rows)], rng)
    inputs = random_tokens(layer, rows)
    pool = poisoned_pool(batch, layer.shape, dtype)
    expected_pool = pool.clone()
    y = step(selective_state_update, layer, inputs, batch, pool, batch.has_initial)
    expected = step(
        selective_state_update_ref, layer, inputs, batch, expected_pool, batch.has_initial
    )
    torch.testing.assert_close(y.double(), expected, atol=1e-5, rtol=1e-5)
    tolerance = 1e-5 if dtype == torch.float32 else 2**-7
    assert_pools_match(pool, expected_pool, atol=1e-5, rtol=tolerance)


def test_decode_steps_continue_a_prefill():
    rng = seeded(2)
    layer = random_layer(4, 1, 6, 8)
    inputs = random_tokens(layer, 45)
    whole = ragged_batch([45], [0], rng)
    pool = poisoned_pool(whole, layer.shape, torch.float32)
    y = scan(ssd_prefill, layer, inputs, whole, pool, dt_limit=(0.0, 2.0))
    start = ragged_batch([40], [0], rng)
    live = poisoned_pool(start, layer.shape, torch.float32)
    first = {name: tensor[:40] for name, tensor in inputs.items()}
    scan(ssd_prefill, layer, first, start, live, dt_limit=(0.0, 2.0))
    slot = start.write_slots
    for t in range(40, 45):
        token = {name: tensor[t : t + 1] for name, tensor in inputs.items()}
        out = selective_state_update(
            live,
            slot,
            slot,
            **token,
            A=layer.A,
            D=layer.D,
            dt_bias=layer.dt_bias,
            dt_limit=(0.0, 2.0),
        )
        torch.testing.assert_close(out[0], y[t], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(live[slot], pool[whole.write_slots], atol=1e-5, rtol=1e-5)


def test_padding_rows_may_share_slot_zero():
    rng = seeded(12)
    layer = random_layer(3, 1, 4, 6)
    batch = ragged_batch([1, 1], [5, 9], rng)
    pool = poisoned_pool(batch, layer.shape, torch.float32)
    inputs = random_tokens(layer, 2)
    alone_pool = pool.clone()
    alone = step(selective_state_update, layer, inputs, batch, alone_pool, None)
    padded = {
        name: torch.cat((t, t.new_full((2, *t.shape[1:]), torch.nan))) for name, t in inputs.items()
    }
    zero = torch.zeros(2, dtype=torch.int64)
    y = selective_state_update(
        pool,
        torch.cat((batch.read_slots, zero)),
        torch.cat((batch.write_slots, zero)),
        **padded,
        A=layer.A,
        D=layer.D,
        dt_bias=layer.dt_bias,
        dt_limit=(0.0, 2.0),
    )
    assert torch.equal(y[:2], alone)
    assert_pools_match(pool[1:], alone_pool[1:], atol=0.0, rtol=0.0)
