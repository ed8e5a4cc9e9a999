"""The times of decode steps that a router learns from the messages that it gets."""

import random

import pytest

from baton.api.admission.step_times import MOST_ROWS, DecodeStepTimes, StepClock


def known(own: float, each: float, sizes: list[int], noise: float = 0.0) -> DecodeStepTimes:
    """Return what is learned of steps that take own + each * rows seconds."""
    times, rng = DecodeStepTimes(), random.Random(random.randrange(1 << 32))
    times.shared = True
    for _ in range(400):
        rows = rng.choice(sizes)
        times.add(rows, (own + each * rows) * rng.uniform(1 - noise, 1 + noise))
    return times


def test_nothing_is_expected_before_small_and_large_steps_were_seen() -> None:
    times = DecodeStepTimes()
    assert times.seconds(3) is None
    for rows in (5, 6, 7, 8, 9):
        times.add(rows, 0.01 * rows)
    assert times.seconds(3) is None
    times.add(10, 0.1)
    assert times.seconds(3) == pytest.approx(0.03)


def test_a_step_has_a_cost_of_its_own_and_one_for_each_row() -> None:
    times = known(0.02, 0.004, [1, 2, 3, 8], noise=0.2)
    assert times.seconds(1) == pytest.approx(0.024, rel=0.15)
    assert times.seconds(5) == pytest.approx(0.04, rel=0.15)
    assert times.seconds(16) == pytest.approx(0.084, rel=0.15)


def test_a_pause_is_no_step() -> None:
    times = known(0.02, 0.004, [1, 8])
    for _ in range(5):
        times.add(1, 60.0)
    seconds = times.seconds(1)
    assert seconds is not None and seconds < 0.1


def test_steps_that_became_slower_are_learned() -> None:
    times = known(0.02, 0.004, [1, 8])
    for _ in range(300):
        times.add(1, 0.048)
        times.add(8, 0.104)
    assert times.seconds(1) == pytest.approx(0.048, rel=0.05)


def test_a_line_never_falls_nor_begins_below_nothing() -> None:
    falling, steep = DecodeStepTimes(), DecodeStepTimes()
    falling.add(1, 0.05)
    falling.add(8, 0.01)
    assert falling.seconds(1) == falling.seconds(8)
    steep.add(2, 0.01)
    steep.add(8, 0.2)
    assert steep.seconds(0) == 0.0


def test_what_is_kept_is_bounded() -> None:
    times = DecodeStepTimes()
    for rows in range(1, 2 * MOST_ROWS):
        times.add(rows, 0.01)
    assert len(times._alone) == MOST_ROWS


class _Seen(DecodeStepTimes):
    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[int, float]] = []

    def add(self, rows: int, seconds: float) -> None:
        self.steps.append((rows, round(seconds, 6)))


def test_only_messages_of_steps_that_follow_each_other_count() -> None:
    seen = _Seen()
    clock = StepClock(seen)
    clock.step([1, 2], 0, 1.0)
    clock.step([1, 2, 3], 1, 1.5)
    clock.step([3], 0, 2.0)  # 1 and 2 have ended, and nothing may have run in between
    clock.step([], 4, 2.5)
    clock.step([3], 0, 3.0)
    clock.step([3, 3], 0, 3.5)  # two steps in one message
    clock.step([3], 0, 3.6)
    assert seen.steps == [(4, 0.5), (1, 0.1)]


def test_a_step_that_is_left_out_is_no_end_of_the_next_one_either() -> None:
    seen = _Seen()
    clock = StepClock(seen)
    clock.step([1], 0, 1.0)
    clock.skip()
    clock.step([1], 0, 3.0)
    clock.step([1], 0, 3.5)
    assert seen.steps == [(1, 0.5)]


def test_a_key_alone_is_faster_than_its_rows_among_others_say() -> None:
    times = known(0.03, 0.005, [1, 3, 8], noise=0.1)
    times.shared = False
    for _ in range(200):
        times.add(1, 0.021)
    assert times.seconds(1) == pytest.approx(0.035, rel=0.1)
    for rows in (1, 4):
        alone, shared = times.seconds_alone(rows), times.seconds(rows)
        assert alone is not None and shared is not None
        assert alone == pytest.approx(0.6 * shared, rel=0.1)


def test_a_key_alone_counts_as_no_slower_than_among_others() -> None:
    times = known(0.02, 0.004, [1, 8])
    times.shared = False
    for _ in range(200):
        times.add(1, 0.048)
    assert times.seconds_alone(1) == times.seconds(1)
