"""Runs that have arrived, against a set of integers."""

from hypothesis import given
from hypothesis import strategies as st

from baton.transfer.coverage import Coverage

runs = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 8)), max_size=20)


@given(runs)
def test_coverage_behaves_as_a_set_of_integers(added: list[tuple[int, int]]) -> None:
    coverage, there = Coverage(), set[int]()
    for start, length in added:
        run = set(range(start, start + length))
        assert (coverage.overlap(start, start + length) is not None) == bool(run & there)
        if run & there:
            continue
        coverage.add(start, start + length)
        there |= run
        assert coverage.total == len(there)
        low, high = min(there), max(there) + 1
        assert coverage.covers(low, high) == (len(there) == high - low)


def test_nothing_covers_an_empty_run() -> None:
    assert Coverage().covers(5, 5)
    assert not Coverage().covers(0, 1)
