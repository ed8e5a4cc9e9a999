"""The chunked gated delta rule and its decode update against float64 recurrences by definition."""

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

from baton.kernels.chunks import SnapshotPlan, chunk_index
from baton.kernels.gated_delta import (
    gated_delta_prefill,
    gated_delta_prefill_ref,
    gated_delta_update,
    gated_delta_update_ref,
)


@dataclass(frozen=True)
class Sizes:
    """channelwise: decays are one a key channel, as in Kimi Delta Attention."""

    key_heads: int
    heads: int
    K: int
    V: int
    channelwise: bool = False

    @property
    def state(self) -> tuple[int, int, int]:
        return self.heads, self.K, self.V


SIZES = [
    Sizes(3, 3, 5, 7),
    Sizes(2, 6, 16, 8),
    Sizes(1, 2, 8, 9),
    Sizes(3, 3, 7, 5, channelwise=True),
    Sizes(2, 2, 16, 16, channelwise=True),
]
every_size = pytest.mark.parametrize("sizes", SIZES, ids=str)


def random_tokens(sizes: Sizes, tokens: int, decay: float = 0.3) -> dict[str, Tensor]:
    """decay: of the state a token, on average, as a logarithm."""
    rates = (tokens, sizes.heads, sizes.K) if sizes.channelwise else (tokens, sizes.heads)
    return {
        "q": torch.randn(tokens, sizes.key_heads, sizes.K),
        "k": torch.randn(tokens, sizes.key_heads, sizes.K),
        "v": torch.randn(tokens, sizes.heads, sizes.V),
        "g": -torch.empty(rates).exponential_() * decay,
        "beta": torch.rand(tokens, sizes.heads),
    }


def scan(function, inputs: dict[str, Tensor], batch: RaggedBatch, pool: Tensor, **more) -> Tensor:
    if function is gated_delta_prefill:
        more = {"chunk_size": 32, **more}
    else:
        more.pop("chunk_size", None)
    return function(
        **inputs,
        cu_seqlens_host=batch.cu_seqlens_host,
        prefix_lens_host=batch.prefix_lens_host,
        pool=pool,
        read_slots=batch.read_slots,
        write_slots=batch.write_slots,
        has_initial=batch.has_initial,
        **more,
    )


def cut(inputs: dict[str, Tensor], which: slice) -> dict[str, Tensor]:
    return {name: tensor[which] for name, tensor in inputs.items()}


RAGGED = [
    ([1], [0]),
    ([70], [0]),
    ([33, 1, 64, 5, 100], [0, 31, 32, 45, 7]),  # prefixes off the chunk grid
    ([0, 40, 0], [9, 0, 0]),  # rows without a token keep the state they came with
]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("lengths, prefixes", RAGGED)
@every_size
def test_outputs_states_and_snapshots_match_the_reference(lengths, prefixes, sizes, seed):
    rng = seeded(seed)
    batch = ragged_batch(lengths, prefixes, rng)
    snapshots = random_snapshots(batch, 32, rng)
    inputs = random_tokens(sizes, batch.tokens)
    pool = poisoned_pool(batch, sizes.state, torch.float32)
    expected_pool = pool.clone()
    o = scan(gated_delta_prefill, inputs, batch, pool, snapshots=snapshots)
    expected = scan(gated_delta_prefill_ref, inputs, batch, expected_pool, snapshots=snapshots)
    torch.testing.assert_close(o.double(), expected, atol=1e-5, rtol=1e-5)
    assert_pools_match(pool, expected_pool, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("chunk_size", [16, 24, 64])
@every_size
def test_the_chunk_size_changes_no_result(chunk_size, sizes):
    rng = seeded(chunk_size)
    batch = ragged_batch([200, 90], [0, chunk_size], rng)
    snapshots = SnapshotPlan((0, 1), (chunk_size, chunk_size + 90), tuple(batch.spare_slots[:2]))
    inputs = random_tokens(sizes, batch.tokens)
    pool = poisoned_pool(batch, sizes.state, torch.float32)
    expected_pool = pool.clone()
    more = {"snapshots": snapshots, "chunk_size": chunk_size}
    o = scan(gated_delta_prefill, inputs, batch, pool, **more)
    expected = scan(gated_delta_prefill_ref, inputs, batch, expected_pool, **more)
    torch.testing.assert_close(o.double(), expected, atol=1e-5, rtol=1e-5)
    assert_pools_match(pool, expected_pool, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("decay", [0.0, 20.0])
@every_size
def test_neither_no_decay_nor_a_total_one_loses_precision(decay, sizes):
    rng = seeded(3)
    batch = ragged_batch([128], [0], rng)
    inputs = random_tokens(sizes, batch.tokens, decay)  # log decays of a chunk run past -1000
    inputs["g"][::3] *= 1e-3  # some tokens forget nothing after others that forget all
    inputs["beta"].fill_(1.0)
    pool = poisoned_pool(batch, sizes.state, torch.float32)
    expected_pool = pool.clone()
    o = scan(gated_delta_prefill, inputs, batch, pool, chunk_size=64)
    expected = scan(gated_delta_prefill_ref, inputs, batch, expected_pool)
    scale = expected.abs().max().item()
    torch.testing.assert_close(o.double(), expected, atol=2e-6 * scale, rtol=0)
    assert_pools_match(pool, expected_pool, atol=5e-6, rtol=5e-6)


def test_keys_that_repeat_overwrite_what_they_stored():
    """The worst case of the triangular system: every entry below its diagonal is one."""
    rng = seeded(5)
    sizes = SIZES[1]
    batch = ragged_batch([128], [0], rng)
    inputs = random_tokens(sizes, batch.tokens, decay=0.0)
    inputs["k"][:] = inputs["q"][:] = inputs["k"][0]
    inputs["beta"].fill_(1.0)
    pool = poisoned_pool(batch, sizes.state, torch.float32)
    o = scan(gated_delta_prefill, inputs, batch, pool, chunk_size=64)
    torch.testing.assert_close(o, inputs["v"] * sizes.K**-0.5, atol=1e-5, rtol=1e-4)


@every_size
def test_a_poisoned_row_does_not_reach_its_neighbours(sizes):
    rng = seeded(4)
    batch = ragged_batch([40, 23, 50], [0, 0, 3], rng)
    inputs = random_tokens(sizes, batch.tokens)
    pool = poisoned_pool(batch, sizes.state, torch.float32)
    expected_pool = pool.clone()
    expected = scan(gated_delta_prefill, inputs, batch, expected_pool)
    for tensor in inputs.values():
        tensor[40:63] = torch.nan
    o = scan(gated_delta_prefill, inputs, batch, pool)
    assert torch.equal(o[:40], expected[:40]) and torch.equal(o[63:], expected[63:])
    others = batch.write_slots[[0, 2]]
    assert torch.equal(pool[others], expected_pool[others])


@every_size
def test_a_prefill_cut_on_the_grid_equals_the_whole_bit_for_bit(sizes):
    rng = seeded(7)
    total, cuts = 301, [64, 192, 256]
    inputs = random_tokens(sizes, total)
    whole = ragged_batch([total], [0], rng)
    pool = poisoned_pool(whole, sizes.state, torch.float32)
    o = scan(gated_delta_prefill, inputs, whole, pool, chunk_size=64)
    outputs = []
    cut_pool = torch.full_like(pool, torch.nan)
    for start, end in zip([0, *cuts], [*cuts, total], strict=True):
        # Mixed with another row, so that the batch is not the same either.
        piece = ragged_batch([37, end - start], [0, start], rng)
        neighbour = random_tokens(sizes, 37)
        mixed = {name: torch.cat((neighbour[name], inputs[name][start:end])) for name in inputs}
        piece_pool = poisoned_pool(piece, sizes.state, torch.float32)
        if start:
            piece_pool[piece.read_slots[1]] = cut_pool[0]
        outputs.append(scan(gated_delta_prefill, mixed, piece, piece_pool, chunk_size=64)[37:])
        cut_pool[0] = piece_pool[piece.write_slots[1]]
    assert torch.equal(torch.cat(outputs), o)
    assert torch.equal(cut_pool[0], pool[whole.write_slots[0]])


@every_size
def test_a_snapshot_resumed_equals_the_run_that_it_was_taken_from(sizes):
    rng = seeded(6)
    inputs = random_tokens(sizes, 150)
    whole = ragged_batch([150], [0], rng)
    pool = poisoned_pool(whole, sizes.state, torch.float32)
    snapshots = SnapshotPlan((0,), (96,), (whole.spare_slots[0],))
    o = scan(gated_delta_prefill, inputs, whole, pool, snapshots=snapshots)
    tail = ragged_batch([54], [96], rng)
    tail_pool = poisoned_pool(tail, sizes.state, torch.float32)
    tail_pool[tail.read_slots[0]] = pool[snapshots.slots[0]]
    rest = cut(inputs, slice(96, None))
    assert torch.equal(scan(gated_delta_prefill, rest, tail, tail_pool), o[96:])


def test_an_index_built_once_gives_what_the_call_would_build():
    rng = seeded(8)
    sizes = SIZES[1]
    batch = ragged_batch([80, 20], [0, 5], rng)
    snapshots = random_snapshots(batch, 32, rng)
    inputs = random_tokens(sizes, batch.tokens)
    pool = poisoned_pool(batch, sizes.state, torch.float32)
    other = pool.clone()
    lens = (batch.cu_seqlens_host, batch.prefix_lens_host)
    index = chunk_index(*lens, 32, snapshots).on(torch.device("cpu"))
    o = scan(gated_delta_prefill, inputs, batch, pool, index=index)
    assert torch.equal(o, scan(gated_delta_prefill, inputs, batch, other, snapshots=snapshots))
    assert_pools_match(pool, other, atol=0.0, rtol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@every_size
def test_the_pool_keeps_its_own_dtype(dtype, sizes):
    rng = seeded(9)
    batch = ragged_batch([40, 7], [0, 32], rng)
    inputs = random_tokens(sizes, batch.tokens)
    inputs |= {name: inputs[name].bfloat16() for name in "qkv"}
    pool = poisoned_pool(batch, sizes.state, dtype)
    expected_pool = pool.clone()
    o = scan(gated_delta_prefill, inputs, batch, pool)
    expected = scan(gated_delta_prefill_ref, inputs, batch, expected_pool)
    assert o.dtype == torch.bfloat16
    torch.testing.assert_close(o, expected.bfloat16(), atol=1e-4, rtol=2**-7)
    tolerance = 1e-5 if dtype == torch.float32 else 2**-7
    assert_pools_match(pool, expected_pool, atol=1e-5, rtol=tolerance)


def step(function, inputs, batch: RaggedBatch, pool: Tensor, has_initial: Tensor | None) -> Tensor:
    slots = (batch.read_slots, batch.write_slots)
    return function(**inputs, pool=pool, read_slots=slots[0], write_slots=slots[1],
                    has_initial=has_initial)  # fmt: skip


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@every_size
def test_a_decode_step_matches_the_reference(rows, sizes, dtype):
    rng = seeded(rows)
    batch = ragged_batch([1] * rows, [rng.choice([0, 7]) for _ in range(rows)], rng)
    inputs = random_tokens(sizes, rows)
    pool = poisoned_pool(batch, sizes.state, dtype)
    expected_pool = pool.clone()
    o = step(gated_delta_update, inputs, batch, pool, batch.has_initial)
    expected = step(gated_delta_update_ref, inputs, batch, expected_pool, batch.has_initial)
    torch.testing.assert_close(o.double(), expected, atol=1e-5, rtol=1e-5)
    tolerance = 1e-5 if dtype == torch.float32 else 2**-7
    assert_pools_match(pool, expected_pool, atol=1e-5, rtol=tolerance)


@every_size
def test_a_row_decodes_to_the_same_bits_in_every_batch(sizes):
    rng = seeded(11)
    batch = ragged_batch([1] * 5, [3] * 5, rng)
    inputs = random_tokens(sizes, 5)
    pool = poisoned_pool(batch, sizes.state, torch.float32)
    alone = pool.clone()
    together = step(gated_delta_update, inputs, batch, pool, None)
    for row in range(5):
        which = slice(row, row + 1)
        o = gated_delta_update(**cut(inputs, which), pool=alone,
                               read_slots=batch.read_slots[which],
                               write_slots=batch.write_slots[which])  # fmt: skip
        assert torch.equal(o, together[which])
    assert_pools_match(alone, pool, atol=0.0, rtol=0.0)


@every_size
def test_decode_steps_continue_a_prefill(sizes):
    rng = seeded(2)
    inputs = random_tokens(sizes, 45)
    whole = ragged_batch([45], [0], rng)
    pool = poisoned_pool(whole, sizes.state, torch.float32)
    o = scan(gated_delta_prefill, inputs, whole, pool)
    start = ragged_batch([40], [0], rng)
    live = poisoned_pool(start, sizes.state, torch.float32)
    scan(gated_delta_prefill, cut(inputs, slice(40)), start, live)
    slot = start.write_slots
    for t in range(40, 45):
        token = cut(inputs, slice(t, t + 1))
        out = gated_delta_update(**token, pool=live, read_slots=slot, write_slots=slot)
        torch.testing.assert_close(out[0], o[t], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(live[slot], pool[whole.write_slots], atol=1e-5, rtol=1e-5)
