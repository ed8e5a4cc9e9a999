"""The choice between fetching a prefix and computing it."""

from baton.engine.handoff.fetch_cost import FetchCost


def measured(rate: float) -> FetchCost:
    """Return the cost after fetches of `rate` bytes a second; the first one also connected."""
    cost = FetchCost()
    cost.took(100, 1000.0)
    for size in (1000, 50):
        cost.took(size, size / rate)
    return cost


def test_a_fetch_must_take_less_time_than_computing() -> None:
    cost = measured(rate=1e6)
    assert cost.sooner(999, computing_s=1e-3)
    assert not cost.sooner(1001, computing_s=1e-3)


def test_what_is_not_known_is_tried() -> None:
    assert FetchCost().sooner(1 << 40, computing_s=1e-9)
    assert measured(rate=1.0).sooner(1 << 40, computing_s=0.0)


def test_a_fetch_that_was_slow_once_is_tried_again() -> None:
    """The machine may have been busy; then it is measured anew, and the old is forgotten."""
    cost = measured(rate=1.0)
    tried = [cost.sooner(1000, computing_s=1.0) for _ in range(64)]
    assert 1 <= sum(tried) <= 8
    for _ in range(100):
        cost.took(1000, 1e-3)
    assert all(cost.sooner(1000, computing_s=1.0) for _ in range(64))
