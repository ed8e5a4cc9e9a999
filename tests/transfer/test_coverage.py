"""Runs that have arrived, against a set of integers."""

from hypothesis import given
from hypothesis import strategies as st

from baton.transfer.memory.coverage import Coverage, LayeredCoverage

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


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6), st.integers(0, 2)), max_size=20))
def test_layers_are_covered_one_by_one(added: list[tuple[int, int, int]]) -> None:
    coverage, there = LayeredCoverage(3), set[tuple[int, int]]()
    for start, length, first in added:
        for layers in ((first, 3), (0, 3), (first, first + 1)):
            cells = {(t, x) for t in range(start, start + length) for x in range(*layers)}
            taken = coverage.overlap(start, start + length, layers) is not None
            assert taken == bool(cells & there)
            if not taken:
                coverage.add(start, start + length, layers)
                there |= cells
    assert coverage.totals == [sum(x == layer for _, x in there) for layer in range(3)]
    whole = {(t, x) for t, _ in there for x in range(3)}
    tokens = {t for t, _ in there} or {0}
    low, high = min(tokens), max(tokens) + 1
    solid = whole == there and len(tokens) == high - low
    assert coverage.covers(low, high) == (solid and bool(there))
