"""The bound on what one key may have beside others."""

from dataclasses import dataclass

import pytest
from api.known_step_times import times_of

from baton.api.admission.key_limit import PRESENT_S, KeyLimit
from baton.api.admission.step_times import DecodeStepTimes


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def seconds(rows: float) -> float:
    """A step of one row takes 24 ms, one of two 28."""
    return 0.02 + 0.004 * rows


def most(limit: KeyLimit, key: str, ranks: int = 1) -> int:
    """Let a key take all that it may. Return how many those are."""
    for count in range(1000):
        limit.note(key, count)
        if not limit.allows(key, ranks):
            return count
    return 1000


def test_a_key_that_is_alone_has_no_bound() -> None:
    assert most(KeyLimit(1.5, times_of(seconds), Clock()), "ada") == 1000


def test_beside_others_a_key_may_slow_them_down_so_far_and_no_further() -> None:
    limit = KeyLimit(1.5, times_of(seconds), Clock())
    limit.note("ben", 1)
    found = most(limit, "ada")
    assert seconds(1 + found) <= 1.5 * seconds(1) < seconds(2 + found)


@pytest.mark.parametrize("others", [1, 10, 100])
def test_the_more_the_others_have_the_more_a_key_may_have(others: int) -> None:
    limit = KeyLimit(1.5, times_of(seconds), Clock())
    limit.note("ben", others)
    found = most(limit, "ada")
    assert found == pytest.approx(0.5 * seconds(others) / 0.004, abs=1)
    assert limit.allows("ben", 1) == (seconds(found + others + 1) <= 1.5 * seconds(found))


def test_a_key_may_always_have_one() -> None:
    limit = KeyLimit(1.01, times_of(lambda rows: rows), Clock())
    limit.note("ada", 1)
    for key in ("ben", "cem"):
        assert most(limit, key) == 1
    assert limit.allows("dan", 1)


def test_a_key_is_present_between_its_requests_and_then_forgotten() -> None:
    clock = Clock()
    limit = KeyLimit(1.5, times_of(seconds), clock)
    limit.note("ben", 1)
    limit.note("ben", 0)
    limit.note("ada", 5)
    clock.now = 0.9 * PRESENT_S
    assert not limit.allows("ada", 1)
    clock.now = 1.1 * PRESENT_S
    assert limit.allows("ada", 1)
    assert limit._uses.keys() == {"ada"}


def test_what_a_key_had_long_ago_does_not_count_for_it() -> None:
    clock = Clock()
    limit = KeyLimit(1.5, times_of(seconds), clock)
    limit.note("ben", 50)
    limit.note("ben", 1)
    assert most(limit, "ada") > 20
    clock.now = 2 * PRESENT_S
    assert most(limit, "ada") < 5


def test_what_a_key_slows_down_by_its_prompts_counts_too() -> None:
    limit = KeyLimit(1.5, times_of(seconds, alone=0.8), Clock())
    limit.note("ben", 1)
    found = most(limit, "ada")
    assert seconds(1 + found) <= 1.5 * 0.8 * seconds(1) < seconds(2 + found)


def test_steps_are_shared_while_two_keys_have_requests() -> None:
    times = DecodeStepTimes()
    limit = KeyLimit(1.5, times, Clock())
    for key, count, shared in (
        ("ada", 2, False), ("ben", 1, True), ("ada", 1, True), ("ada", 0, False), ("ben", 0, False),
    ):  # fmt: skip
        limit.note(key, count)
        assert times.shared == shared


def test_ranks_share_the_requests() -> None:
    one, four = (KeyLimit(1.5, times_of(seconds), Clock()) for _ in range(2))
    for limit in (one, four):
        limit.note("ben", 4)
    assert most(four, "ada", ranks=4) == pytest.approx(4 * 3, abs=1)
    assert most(one, "ada") < 8


def test_without_a_bound_or_a_measured_time_there_is_no_limit() -> None:
    for limit in (
        KeyLimit(0.0, times_of(seconds), Clock()),
        KeyLimit(1.5, DecodeStepTimes(), Clock()),
    ):
        limit.note("ben", 1)
        assert most(limit, "ada") == 1000
