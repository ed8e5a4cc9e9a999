"""Drafts where they pay: costs of steps, guesses that were right, and the choice of a window."""

import math
import random
from collections.abc import Callable

import pytest

from baton.engine.speculation.acceptance import DepthShares, FadingShare, guessed_right
from baton.engine.speculation.loss_limit import LossLimit
from baton.engine.speculation.ngram import NgramProposer
from baton.engine.speculation.step_costs import StepCosts, _about
from baton.engine.speculation.window_gain import CUT, PLAIN, Drafted, Guessed, choose

WINDOWS = (2, 4, 8)


def costs(*each: float) -> Callable[[int], float]:
    """Return the costs of windows that are cut, and of 2, 4 and 8 tokens."""
    return dict(zip((CUT, *WINDOWS), each, strict=True)).__getitem__


def test_costs_are_compared_where_both_are_known() -> None:
    costs = StepCosts()
    assert costs.ratio(4, 2) == math.inf  # of what?
    for _ in range(5):
        costs.add(4, 1, 9.0)
    assert 1.0 < costs.ratio(4, 2) < costs.ratio(4, 8) < 2.0  # cheap enough to be tried
    assert costs.ratio(4, CUT) == 1.0
    for turn in range(5):
        if turn < 2:  # the first steps of a kind touch memory
            for rows, window in ((1, 1), (1, 4), (8, 1), (8, 4), (8, CUT)):
                costs.add(rows, window, 50.0 * window)
            continue
        costs.add(1, 1, 1.0)
        costs.add(1, 4, 1.5)
        costs.add(8, 1, 2.0)
        costs.add(8, 4, 6.0)
        costs.add(8, CUT, 2.5)
    costs.add(6, 4, 90.0)
    assert [costs.ratio(rows, 4) for rows in (1, 2, 6, 8, 20)] == [1.5, 1.5, 3.0, 3.0, 3.0]
    assert costs.ratio(8, CUT) == 1.25
    assert (costs.ratio(8, 2), costs.ratio(8, 8)) == pytest.approx((5 / 3, 17 / 3))  # guessed
    for _ in range(8):  # the machine is another now
        costs.add(8, 4, 3.0)
    assert costs.ratio(8, 4) == 1.5
    for _ in range(130):  # what has long not been used is to be tried again
        costs.add(8, 1, 2.0)
    assert 1.0 < costs.ratio(8, 4) < 1.5
    costs.add(8, 4, 5.0)
    assert 1.0 < costs.ratio(8, 4) < 1.5
    for _ in range(200):
        costs.add(8, 4, 5.0)
    assert costs.ratio(8, 4) == 2.5
    for _ in range(60):
        costs.add(8, 4, 5.0)
    assert costs.ratio(8, 4) == math.inf  # so that plain steps are measured again
    for _ in range(3):
        costs.add(8, 1, 4.0)
    assert costs.ratio(8, 4) == 1.25


def test_steps_that_others_have_disturbed_count_little() -> None:
    costs = StepCosts()
    for second in (1.0, 1.0, 1.0, 1.0, 1.0, 9.0, 9.0, 9.0, 9.0, 1.0):
        costs.add(2, 1, 1.0)
        costs.add(2, 4, 1.5 * second)
        costs.add(2, 2, 0.8)
    assert (costs.ratio(2, 4), costs.ratio(2, 2)) == (1.5, 1.0)


def test_about_as_many_rows_cost_the_same() -> None:
    costs = StepCosts()
    for rows in range(17, 25):
        costs.add(rows, 1, 1.0)
        costs.add(rows, 2, 1.5)
    assert costs.ratio(24, 2) == 1.5
    kinds = sorted({_about(rows) for rows in range(1, 25)})
    assert kinds == [1, 2, 3, 4, 6, 8, 12, 16, 24]
    assert all(rows <= _about(rows) <= 1.5 * rows for rows in range(1, 1000))


def test_old_trials_fade() -> None:
    chance = FadingShare(0.5, 1.0)
    assert chance.rate == 0.5
    chance.add(16, 16)
    assert chance.rate == pytest.approx(1, abs=0.03)
    for _ in range(40):
        chance.add(1, 4)
    assert chance.rate == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize("kinds", [2, 5, 1000])
def test_guesses_of_the_past_are_those_of_the_proposer(seeded: random.Random, kinds: int) -> None:
    for count in (1, 2, 3, 9, 60):
        tokens = [seeded.randrange(kinds) for _ in range(count)]
        newest = seeded.randint(1, 16)
        ends = range(max(1, count - newest), count)
        guesses = [list(NgramProposer().propose(0, tokens[:end], 1)) for end in ends]
        right = sum(guess == [tokens[end]] for guess, end in zip(guesses, ends, strict=True))
        found = sum(map(bool, guesses))
        assert guessed_right(tokens, newest, 2048) == (right, found)


@pytest.mark.parametrize("cuts", [True, False])
def test_rows_pay_for_the_windows_of_others(cuts: bool) -> None:
    """Eight rows, of which some guess all and the others nothing."""
    sure, at = Guessed(1.0, 1.0), costs(1.0, 1.4, 2.3, 4.4)
    for count, window in ((8, 8), (5, 4), (3, PLAIN)):
        found = choose([sure] * count, 8, WINDOWS, at, cuts)
        assert (found.window, found.rows) == (window, count * (window > PLAIN))
        tokens = 8 + count * (window - 1)
        assert found.gain == pytest.approx(tokens / 8 / (at(window) if window > 1 else 1))
    assert choose([], 8, WINDOWS, at, cuts).window == PLAIN


def test_the_window_grows_with_the_part_that_is_right() -> None:
    at = costs(1.0, 1.2, 1.6, 2.4)
    rates = (0.05, 0.3, 0.5, 0.7, 0.95)
    windows = [choose([Guessed(rate, 1.0)], 1, WINDOWS, at, False).window for rate in rates]
    assert windows == [PLAIN, 2, 2, 4, 8]


def test_rare_guesses_pay_where_steps_without_any_are_cut() -> None:
    """A row that guesses in one of five steps, all of it right; one that guesses wrongly does not
    join it."""
    at = costs(1.01, 1.4, 2.3, 9.0)
    rare, wrong = Guessed(1.0, 0.2), Guessed(0.2, 0.9)
    cut = choose([rare, wrong], 2, WINDOWS, at, True)
    assert (cut.window, cut.rows) == (4, 1)
    assert cut.gain == pytest.approx(2.6 / 2 / (0.8 * 1.01 + 0.2 * 2.3))
    assert choose([rare, wrong], 2, WINDOWS, at, False).window == PLAIN
    dear = costs(1.4, 1.4, 2.3, 9.0)  # the search itself costs too much
    assert choose([rare, wrong], 2, WINDOWS, dear, True).window == PLAIN


def test_a_layers_drafts_are_tried_deeper_when_the_first_are_right() -> None:
    shares, others = DepthShares(3, 2.0), DepthShares(3, 4.0)
    assert shares.smoothed(0.6) == [0.6, 0.0, 0.0]
    for _ in range(4):
        shares.add(1, 1)
    first, second, third = shares.smoothed(0.6)
    assert first > 0.85 and 0.5 < second < first and 0.3 < third < second
    for _ in range(24):
        shares.add(3, 2)  # the third is always wrong
        others.add(3, 0)
    rates = shares.smoothed(0.6)
    assert rates == pytest.approx([1, 1, 0], abs=0.15)
    mine = others.given(rates)
    assert mine[0] < 0.2 and mine[1:] == pytest.approx(rates[1:])  # deeper ones were not tried


def test_a_layers_drafts_give_what_each_depth_gives() -> None:
    drafted = Drafted.of([0.9, 0.5, 0.1])
    gains = [drafted.tokens(window) for window in (1, 2, 4, 8)]
    assert gains == pytest.approx([0, 0.9, 0.9 + 0.45 + 0.045, 0.9 + 0.45 + 0.045])
    at = costs(1.0, 1.3, 1.9, 2.4)
    assert choose([drafted], 1, WINDOWS, at, False).window == 2
    assert choose([Drafted.of([0.9] * 7)], 1, WINDOWS, at, False).window == 8


def test_a_step_with_the_layer_is_taken_to_cost_no_less_than_one_without() -> None:
    costs = StepCosts()
    for _ in range(5):
        costs.add(4, 1, 1.0)
        costs.add(4, 4, 1.6)
    assert costs.ratio(4, 2, True) > costs.ratio(4, 2) == pytest.approx(1.2)
    assert costs.spent(4, 4, 9.0, True) is None  # none was measured
    for _ in range(3):
        costs.add(4, 4, 1.9, True)
    assert costs.ratio(4, 4, True) == pytest.approx(1.6 + 3 * 0.05)
    assert costs.spent(4, 4, 1.9, True) == pytest.approx(1.9)
    assert costs.spent(4, 4, 99.0, True) == 4.0  # the first of them may be disturbed
    for _ in range(2):
        costs.add(4, 4, 1.9, True)
    assert (costs.ratio(4, 4, True), costs.ratio(4, 4)) == (1.9, 1.6)
    assert costs.spent(4, 4, 99.0, True) == 1.9
    assert 1.6 < costs.ratio(4, 8, True) == pytest.approx(1 + 7 * 0.3)


def test_what_drafts_lose_is_limited_in_all() -> None:
    """They cost twice what they give, whenever they are allowed."""
    limit, lost, steps = LossLimit(), 0.0, 5000
    for _ in range(steps):
        limit.step()
        if limit.open:
            limit.add(1.0, 2.0)
            lost += 1.0
    assert 8 < lost < 0.02 * steps
    assert not limit.full
    for _ in range(1000):
        limit.step()
    assert limit.open and limit.full and not limit.worn
    for _ in range(99):  # what was won does not pay for later losses
        limit.add(3.0, 1.0)
    for _ in range(8):
        limit.add(1.0, 2.0)
    assert not limit.open and limit.worn
