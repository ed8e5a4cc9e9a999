"""Tests of the depths that are tracked, and of the grids they lie on."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.core.errors import ConfigError
from baton.engine.cache.track_plan import prefill_depths
from baton.engine.layout.grids import Grids, Strategy, resolve

sizes = st.integers(0, 600)
grids = st.sampled_from([1, 4, 16, 64, 256])


@given(sizes, st.integers(1, 600), grids, st.sets(st.integers(1, 1200)), st.integers(0, 8))
def test_every_depth_is_on_the_grid_inside_the_chunk_and_within_the_budget(
    prefix: int, extend: int, grid: int, branches: set[int], budget: int
) -> None:
    wanted, opportunistic = prefill_depths(prefix, extend, grid, branches, budget)
    depths = sorted(wanted + opportunistic)
    possible = [d for d in range(prefix + 1, prefix + extend + 1) if d % grid == 0]
    assert depths == sorted(set(depths)) and set(depths) <= set(possible)
    assert list(wanted) == sorted(wanted) and list(opportunistic) == sorted(opportunistic)
    assert len(depths) == min(budget, len(possible))
    if budget >= len(possible):
        assert depths == possible
    known = sorted(branches & set(possible[:-1]))
    if known and budget >= 1:
        assert known[-1] in wanted
    if len(known) < budget:
        assert set(known) <= set(wanted)
    if possible and budget >= (2 if known else 1):
        assert possible[-1] in wanted


@given(sizes, st.integers(1, 600), grids, st.integers(2, 8))
def test_no_gap_is_much_wider_than_an_even_spread(
    prefix: int, extend: int, grid: int, budget: int
) -> None:
    depths = sorted(sum(prefill_depths(prefix, extend, grid, (), budget), ()))
    possible = [d for d in range(prefix + 1, prefix + extend + 1) if d % grid == 0]
    if len(possible) > budget:
        assert len(depths) == budget
        bounds = [possible[0] - grid, *depths]
        gaps = [(b - a) // grid for a, b in pairwise(bounds)]
        assert max(gaps) <= -(-len(possible) // budget) + 1


def test_with_one_snapshot_the_branch_point_goes_before_the_chunk_end() -> None:
    assert prefill_depths(0, 1000, 256, [256], 1) == ((256,), ())
    assert prefill_depths(0, 1000, 256, (), 1) == ((768,), ())
    assert prefill_depths(0, 1000, 256, [256], 2) == ((256, 768), ())


def test_where_not_all_branch_points_fit_the_deepest_are_kept() -> None:
    assert prefill_depths(0, 1000, 128, [128, 256, 512], 3) == ((256, 512, 896), ())
    assert prefill_depths(300, 700, 128, [128, 333, 512, 2048], 3).wanted == (512, 896)


def test_a_prompt_that_ends_on_the_grid_keeps_what_its_repetition_can_use() -> None:
    assert prefill_depths(0, 1024, 128, (), 4, prompt=1024).wanted == (896, 1024)
    assert prefill_depths(0, 1024, 128, (), 4, prompt=1030).wanted == (1024,)
    assert prefill_depths(0, 1024, 128, (), 1, prompt=1024).wanted == (1024,)


def test_spread_depths_are_only_hopeful() -> None:
    assert prefill_depths(0, 1024, 128, [512], 4) == ((512, 1024), (384, 768))


def test_the_grids_follow_from_chunk_page_and_interval() -> None:
    assert (Grids(256, 64).checkpoint, Grids(256, 64).decode) == (256, 256)
    assert (Grids(64, 128, 100).checkpoint, Grids(64, 128, 100).decode) == (128, 3200)


def test_sizes_that_do_not_divide_are_refused_with_one_that_works() -> None:
    with pytest.raises(ConfigError, match=r"page-size 48 .* 64 .* use --page-size 32"):
        Grids(64, 48)
    with pytest.raises(ConfigError, match="use --page-size 96"):
        Grids(96, 100)


def test_no_buffer_needs_single_token_pages() -> None:
    assert resolve(Strategy.AUTO, 3, 64) is Strategy.EXTRA_BUFFER
    assert resolve(Strategy.NO_BUFFER, 3, 1) is Strategy.NO_BUFFER
    assert resolve(Strategy.NO_BUFFER, 0, 64) is Strategy.NO_BUFFER
    with pytest.raises(ConfigError, match="got 64"):
        resolve(Strategy.NO_BUFFER, 3, 64)
