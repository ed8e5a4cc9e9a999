"""The chunk plan against a simulation: exact cover, absolute cuts, and where states lie."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.kernels.chunks import SnapshotPlan, chunk_index, plan_chunks

ROWS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 30)), min_size=1, max_size=6)


def cumulative(lengths: list[int]) -> list[int]:
    ends = [0]
    for length in lengths:
        ends.append(ends[-1] + length)
    return ends


@settings(max_examples=200, deadline=None)
@given(rows=ROWS, chunk_size=st.integers(1, 17))
def test_chunks_cover_every_token_once_and_are_cut_at_absolute_multiples(rows, chunk_size):
    lengths, prefixes = [n for n, _ in rows], [p for _, p in rows]
    cu_seqlens = cumulative(lengths)
    plan = plan_chunks(cu_seqlens, prefixes, chunk_size)
    covered: list[int] = []
    for row, start, length in zip(plan.rows, plan.starts, plan.lengths, strict=True):
        assert cu_seqlens[row] <= start and start + length <= cu_seqlens[row + 1]
        depth = prefixes[row] + start - cu_seqlens[row]
        assert depth // chunk_size == (depth + length - 1) // chunk_size
        covered += range(start, start + length)
        at_cut = (depth + length) % chunk_size == 0
        assert at_cut or start + length == cu_seqlens[row + 1]
    assert sorted(covered) == list(range(cu_seqlens[-1]))


@settings(max_examples=200, deadline=None)
@given(rows=ROWS, chunk_size=st.integers(1, 17))
def test_each_step_passes_states_between_chunks_of_the_same_rows(rows, chunk_size):
    lengths, prefixes = [n for n, _ in rows], [p for _, p in rows]
    cu_seqlens = cumulative(lengths)
    plan = plan_chunks(cu_seqlens, prefixes, chunk_size)
    assert sorted(plan.row_order) == list(range(len(rows)))
    next_token = cu_seqlens[:-1]
    states = {}
    first = 0
    for width in plan.widths:
        assert plan.rows[first : first + width] == plan.row_order[:width]
        for chunk in range(first, first + width):
            row = plan.rows[chunk]
            assert plan.starts[chunk] == next_token[row]
            states[row, next_token[row] - cu_seqlens[row]] = chunk
            next_token[row] += plan.lengths[chunk]
        first += width
    for rank, row in enumerate(plan.row_order):
        states[row, lengths[row]] = len(plan.rows) + rank
    for (row, extent), place in states.items():
        assert plan.state_after(row, extent) == place


def test_a_depth_inside_a_chunk_is_no_snapshot():
    plan = plan_chunks([0, 10], [4], 8)
    assert plan.lengths == (4, 6)
    with pytest.raises(ValueError, match="row 0 has no chunk boundary 5 tokens"):
        plan.state_after(0, 5)


def test_places_in_a_chunk_that_hold_no_token_repeat_one_of_its_own():
    index = chunk_index([0, 20, 23], [0, 7], 64, None).on(torch.device("cpu"))
    assert [tile.length for tile in index.tiles] == [32, 16]
    for tile, (start, end) in zip(index.tiles, [(0, 20), (20, 23)], strict=True):
        tokens = tile.tokens.view(tile.valid.shape)
        assert tokens[tile.valid].tolist() == list(range(start, end))
        assert set(tokens[~tile.valid].tolist()) == {end - 1}


def test_a_snapshot_without_a_slot_is_refused():
    with pytest.raises(ValueError, match="1 rows, 1 depths and 0 slots"):
        SnapshotPlan((0,), (64,), ())
