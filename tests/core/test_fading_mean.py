"""A mean in which the older measurements count less."""

from baton.core.fading_mean import FadingMean


def test_nothing_measured_is_nothing() -> None:
    assert FadingMean().value == 0.0


def test_it_is_the_sum_over_the_sum_while_all_is_kept() -> None:
    mean = FadingMean()
    mean.add(30, 10, kept=1.0)
    mean.add(10, 30, kept=1.0)
    assert (mean.value, mean.amount, mean.units) == (1.0, 40, 40)


def test_what_was_before_counts_as_far_as_is_said() -> None:
    mean = FadingMean()
    mean.add(30, 10, kept=1.0)
    mean.add(5, 5, kept=0.5)
    assert mean.value == (15 + 5) / (5 + 5)
    mean.add(7, 1, kept=0.0)
    assert mean.value == 7.0


def test_both_sums_fade_alike_so_time_alone_changes_no_mean() -> None:
    mean = FadingMean()
    mean.add(30, 10, kept=1.0)
    mean.add(0, 0, kept=0.25)
    assert mean.value == 3.0 and mean.units == 2.5
