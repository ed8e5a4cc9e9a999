"""The measurement of a link's bandwidth, by a clock of the test's own."""

from collections.abc import Sequence

import pytest

from baton.transfer.channels.link_rate import FORGOTTEN_S, LinkRate


class Link:
    """A LinkRate whose first stretch is over, and its clock."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.rate = LinkRate(lambda: self.now_s)
        self.stretch([(0, 5, 9)])

    def stretch(self, writes: Sequence[tuple[float, float, int]]) -> None:
        """Let each write begin and end at its times, in seconds from now, with its bytes."""
        began_s = self.now_s
        steps: list[tuple[float, int | None]] = [(begin, None) for begin, _, _ in writes]
        steps += [(end, size) for _, end, size in writes]
        for at_s, size in sorted(steps, key=lambda step: (step[0], step[1] is not None)):
            self.now_s = began_s + at_s
            if size is None:
                self.rate.begin()
            else:
                self.rate.end(size)


@pytest.mark.parametrize(
    ("writes", "rate"),
    [
        ([(0, 2, 100)], 50),
        ([(0, 2, 100), (1, 4, 100)], 50),  # three of the seconds are shared: they count once
        ([(0, 4, 100), (1, 2, 300)], 100),
        ([(0, 2, 100), (0, 4, 0)], 25),  # one failed
    ],
)
def test_the_time_in_which_any_write_is_under_way_counts_once(
    writes: Sequence[tuple[float, float, int]], rate: float
) -> None:
    link = Link()
    link.stretch(writes)
    link.stretch(writes)
    assert link.rate.bytes_per_s == 0, "the first stretch connects, and two are too few"
    link.stretch(writes)
    assert link.rate.bytes_per_s == pytest.approx(rate)


def test_the_time_between_writes_does_not_count() -> None:
    link = Link()
    for _ in range(3):
        link.stretch([(0, 1, 100)])
        link.now_s += 20
    assert link.rate.bytes_per_s == pytest.approx(100)


def test_a_link_is_not_slow_because_some_writes_had_to_wait() -> None:
    """They wait for a core, or are so small that most of their time is spent on other things."""
    link = Link()
    for size in (2, 100, 1, 3, 1, 2):
        link.stretch([(0, 1, size)])
    assert link.rate.bytes_per_s == pytest.approx(100)


def test_a_link_that_has_become_slower_is_soon_known_to_be() -> None:
    link = Link()
    for _ in range(20):
        link.stretch([(0, 1, 1000)])
    for _ in range(8):
        assert link.rate.bytes_per_s == pytest.approx(1000)
        link.stretch([(0, 1, 100)])
    assert link.rate.bytes_per_s == pytest.approx(100)


def test_what_was_measured_a_minute_ago_is_forgotten() -> None:
    link = Link()
    for _ in range(3):
        link.stretch([(0, 1, 100)])
    link.now_s += FORGOTTEN_S
    assert link.rate.bytes_per_s
    link.now_s += 1
    assert link.rate.bytes_per_s == 0


@pytest.mark.parametrize(("size", "rate"), [(10, 10), (1000, 1000)])
def test_one_try_shows_whether_a_slow_link_still_is(size: int, rate: float) -> None:
    link = Link()
    for _ in range(8):
        link.stretch([(0, 1, 10)])
    link.now_s += FORGOTTEN_S + 1
    link.stretch([(0, 1, size)])
    assert link.rate.bytes_per_s == pytest.approx(rate)


def test_one_slow_write_after_a_pause_is_not_enough() -> None:
    """Two older stretches count too where only one is new."""
    link = Link()
    for size in (5000, 100, 100):
        link.stretch([(0, 1, size)])
    link.now_s += FORGOTTEN_S + 1
    link.stretch([(0, 1, 10)])
    assert link.rate.bytes_per_s == pytest.approx(100)
    for _ in range(2):
        link.stretch([(0, 1, 10)])
    assert link.rate.bytes_per_s == pytest.approx(10)


def test_writes_that_all_failed_measure_nothing() -> None:
    link = Link()
    for _ in range(3):
        link.stretch([(0, 1, 0)])
    assert link.rate.bytes_per_s == 0
