"""The rate at which a queue empties."""

import pytest

from baton.api.admission.drain_rate import MAX_WAIT_S, MEMORY_S, DrainRate


class Clock:
    now = 5.0

    def __call__(self) -> float:
        return self.now


def test_the_rate_is_that_of_the_time_in_which_something_waited() -> None:
    clock = Clock()
    rate = DrainRate(clock)
    rate.left(10_000)  # nothing waited
    assert rate.tokens_per_s == 0
    for _ in range(40):
        rate.begin()
        for _ in range(4):
            clock.now += 0.5
            rate.left(100)
        rate.end()
        clock.now += 70
    assert rate.tokens_per_s == pytest.approx(200, rel=0.05)
    assert rate.seconds_for(500, 1.0) == pytest.approx(2.5, rel=0.05)


def test_the_rate_follows_a_change_and_sinks_while_nothing_leaves() -> None:
    clock = Clock()
    rate = DrainRate(clock)
    rate.begin()
    for tokens in (100, 10):
        for _ in range(60):
            clock.now += 1.0
            rate.left(tokens)
        assert rate.tokens_per_s == pytest.approx(tokens, rel=0.1)
    before = rate.tokens_per_s
    clock.now += MEMORY_S
    assert rate.tokens_per_s == pytest.approx(before / 2.718, rel=0.1)


def test_a_wait_is_bounded_and_unknown_without_a_rate() -> None:
    clock = Clock()
    rate = DrainRate(clock)
    assert rate.seconds_for(100, 1.0) == 1.0
    rate.begin()
    clock.now += 1
    rate.left(1)
    assert rate.seconds_for(1e9, 1.0) == MAX_WAIT_S
