"""Drafts where they pay: costs of steps, and guesses that were right."""

import random

import pytest

from baton.engine.speculation.acceptance import Acceptance, guessed_right
from baton.engine.speculation.ngram import NgramProposer
from baton.engine.speculation.step_costs import StepCosts


def test_costs_are_compared_where_both_are_known() -> None:
    costs = StepCosts()
    assert 1.0 < costs.ratio(4, 2) < costs.ratio(4, 8) < 2.0  # cheap enough to be tried
    for turn in range(5):
        if turn < 2:  # the first steps of a kind touch memory
            for rows, window in ((1, 1), (1, 4), (8, 1), (8, 4)):
                costs.add(rows, window, 50.0 * window)
            continue
        costs.add(1, 1, 1.0)
        costs.add(1, 4, 1.5)
        costs.add(8, 1, 2.0)
        costs.add(8, 4, 6.0)
    costs.add(6, 4, 90.0)
    assert [costs.ratio(rows, 4) for rows in (1, 2, 6, 8, 20)] == [1.5, 1.5, 3.0, 3.0, 3.0]
    for _ in range(8):  # the machine is another now
        costs.add(8, 4, 3.0)
    assert costs.ratio(8, 4) == 1.5
    for _ in range(600):  # what has long not been used is to be tried again
        costs.add(8, 1, 2.0)
    assert 1.0 < costs.ratio(8, 4) < 1.5
    costs.add(8, 4, 5.0)
    assert 1.0 < costs.ratio(8, 4) < 1.5


def test_old_guesses_fade() -> None:
    acceptance = Acceptance()
    assert acceptance.rate == 0
    acceptance.add(16, 16)
    assert acceptance.rate == 1
    for _ in range(40):
        acceptance.add(1, 4)
    assert acceptance.rate == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize("kinds", [2, 5, 1000])
def test_guesses_of_the_past_are_those_of_the_proposer(seeded: random.Random, kinds: int) -> None:
    for count in (1, 2, 3, 9, 60):
        tokens = [seeded.randrange(kinds) for _ in range(count)]
        newest = seeded.randint(1, 16)
        right = sum(
            list(NgramProposer().propose(0, tokens[:end], 1)) == [tokens[end]]
            for end in range(max(1, count - newest), count)
        )
        assert guessed_right(tokens, newest, 2048) == right
