"""Tests of what an engine learns of the time of its steps."""

import random

import pytest
from engine.engines import greedy, make_engine, random_prompt, run
from engine.hash_model import HashModel

from baton.engine.request.request import RequestSpec
from baton.engine.schedule.chunking import LEAST_BESIDE, PromptBudget
from baton.engine.schedule.step_speeds import StepSpeeds
from baton.engine.settings.choices import MixedBudget


def learnt(decode_s: float, token_s: float) -> StepSpeeds:
    """Return the speeds after steps of either kind."""
    speeds = StepSpeeds()
    speeds.add(4, 0, 1000.0)  # the first step of all
    for tokens in (50, 7, 200):
        speeds.add(4, 0, decode_s)
        speeds.add(4, tokens, decode_s + tokens * token_s)
    return speeds


def test_a_prompt_token_costs_what_the_step_takes_longer_than_without() -> None:
    speeds = learnt(decode_s=0.01, token_s=0.0002)
    assert speeds.decode_step_s == pytest.approx(0.01)
    assert speeds.prompt_token_s == pytest.approx(0.0002)
    alone = StepSpeeds()
    for _ in range(2):
        alone.add(0, 100, 0.02)
    assert (alone.decode_step_s, alone.prompt_token_s) == (0, pytest.approx(0.0002))


def test_old_steps_are_forgotten() -> None:
    speeds = learnt(decode_s=0.01, token_s=0.0002)
    for _ in range(100):
        speeds.add(4, 0, 0.03)
        speeds.add(0, 100, 0.1)
    assert speeds.decode_step_s == pytest.approx(0.03, rel=0.01)
    assert speeds.prompt_token_s == pytest.approx(0.001, rel=0.01)


@pytest.mark.parametrize(
    ("decode_s", "token_s", "beside"),
    [(0.02, 0.0002, 64), (0.0257, 0.0002, 128), (0.1, 0.0002, 256), (0.01, 0.01, LEAST_BESIDE)],
)
def test_prompt_tokens_beside_rows_that_decode_about_double_the_step(
    decode_s: float, token_s: float, beside: int
) -> None:
    budget = PromptBudget(256, MixedBudget.AUTO, learnt(decode_s, token_s))
    assert (budget.tokens(decoding=True), budget.tokens(decoding=False)) == (beside, 256)


def test_what_is_not_measured_yet_is_taken_to_be_dear() -> None:
    assert PromptBudget(256, MixedBudget.AUTO, StepSpeeds()).tokens(decoding=True) == LEAST_BESIDE
    assert PromptBudget(16, MixedBudget.AUTO, StepSpeeds()).tokens(decoding=True) == 16
    assert PromptBudget(256, None, StepSpeeds()).tokens(decoding=True) == 256
    assert PromptBudget(256, 8, StepSpeeds()).tokens(decoding=True) == 8


@pytest.mark.parametrize(
    ("target_s", "beside", "alone"),
    [(0.2, 48, 80), (0.11, 16, 32), (0.01, 16, 16), (9.0, 256, 256)],
)
def test_a_target_says_how_many_prompt_tokens_a_step_has(
    target_s: float, beside: int, alone: int
) -> None:
    """A part of a prompt costs 13 ms and 2.3 for each token, beside a step of 50."""
    speeds = StepSpeeds()
    speeds.add(4, 0, 1000.0)
    for tokens in (64, 64, 32, 64, 48):
        speeds.add(4, 0, 0.05)
        speeds.add(4, tokens, 0.05 + 0.013 + 0.0023 * tokens)
    budget = PromptBudget(256, MixedBudget.AUTO, speeds, target_s)
    assert (budget.tokens(decoding=True), budget.tokens(decoding=False)) == (beside, alone)
    assert budget.beside_decode == beside
    assert PromptBudget(256, 8, speeds, target_s).tokens(decoding=True) == 8
    assert PromptBudget(256, None, speeds, target_s).tokens(decoding=False) == 256
    assert PromptBudget(8, MixedBudget.AUTO, speeds, target_s).tokens(decoding=True) == 8


def test_parts_of_one_size_or_with_noise_do_not_let_a_budget_jump() -> None:
    for sizes, seconds in (((64, 64), (0.16, 0.16)), ((64, 32), (0.15, 0.16))):
        speeds = StepSpeeds()
        speeds.add(4, 0, 1000.0)
        for tokens, added_s in zip(sizes, seconds, strict=True):
            speeds.add(4, 0, 0.05)
            speeds.add(4, tokens, 0.05 + added_s)
        found = speeds.within(0.05 + 0.16, 512, decoding=True)
        assert found is not None and 16 <= found <= 64
        grown = speeds.within(0.05 + 0.32, 512, decoding=True)
        assert grown is not None and grown <= 3 * 64


def test_a_target_says_nothing_before_speeds_are_known() -> None:
    budget = PromptBudget(256, MixedBudget.AUTO, StepSpeeds(), 0.2)
    assert (budget.tokens(decoding=True), budget.tokens(decoding=False)) == (LEAST_BESIDE, 256)


def test_an_engine_says_how_long_its_steps_take(seeded: random.Random) -> None:
    engine = make_engine(HashModel(), chunk=128, prefill_beside_decode=MixedBudget.AUTO)
    assert not engine.status().prompt_token_s and not engine.status().decode_step_s
    for i in range(3):
        engine.submit(RequestSpec(f"r{i}", random_prompt(seeded, 60, 64), greedy(9)))
        run(engine)
    status = engine.status()
    assert status.prompt_token_s > 0 and status.decode_step_s > 0
    assert LEAST_BESIDE <= status.beside_decode <= 128
