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


def test_an_engine_says_how_long_its_steps_take(seeded: random.Random) -> None:
    engine = make_engine(HashModel(), chunk=128, prefill_beside_decode=MixedBudget.AUTO)
    assert not engine.status().prompt_token_s and not engine.status().decode_step_s
    for i in range(3):
        engine.submit(RequestSpec(f"r{i}", random_prompt(seeded, 60, 64), greedy(9)))
        run(engine)
    status = engine.status()
    assert status.prompt_token_s > 0 and status.decode_step_s > 0
    assert LEAST_BESIDE <= status.beside_decode <= 128
