"""`auto` over whole answers, by steps whose seconds are set: as a 191M hybrid's on two cores, where
a window of four costs 1.3 plain steps of one row and 2.4 of eight."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from engine.engines import greedy, make_engine, random_prompt, run, step_until, tokens_of
from engine.test_speculation import assert_same_tokens

from baton.core.cache_salt import make_salt
from baton.core.sampling_params import SamplingParams
from baton.engine.engine import Engine
from baton.engine.request.draw import Draw
from baton.engine.request.events import Event, RequestFinished
from baton.engine.request.request import Request, RequestSpec
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.engine.speculation.draft_choice import DraftChoice
from baton.engine.speculation.drafter import Drafter
from baton.engine.speculation.guess_record import Ahead, GuessRecord
from baton.engine.speculation.ngram import NgramProposer
from baton.engine.speculation.proposer import Proposers
from baton.engine.speculation.step_costs import StepCosts
from baton.engine.speculation.window_gain import CUT, PLAIN
from baton.engine.step.batch import Batch, Row
from baton.engine.step.plain_table import PlainTable
from baton.engine.step.step_result import StepResult

TOKENS = 64
OURS = make_salt("ours")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds of steps of rows that decode, as the engine is told them."""
    seconds: list[float] = []
    took = Drafter.took

    def told(self: Drafter, batch: Batch, result: StepResult) -> None:
        known = 0.013 + 0.0015 * batch.decode_rows * result.window
        if not batch.prompts:
            seconds.append(known)
        took(self, batch, replace(result, seconds=known))

    monkeypatch.setattr(Drafter, "took", told)
    return seconds


class Costs:
    """The steps that a choice is told of."""

    skips = False

    def __init__(self) -> None:
        self.told: list[tuple[int, int, float]] = []

    def took(self, rows: int, window: int, seconds: float, layered: bool, accepted: int) -> None:
        self.told.append((rows, window, seconds))


def test_each_kind_of_step_is_measured_for_itself() -> None:
    """Plain, cut because nothing was guessed, and of a window; no others."""
    draw = Draw(SamplingParams(), short=False, allowed=None)
    plain = Row(1, 1, 5, 6, 1, 1, 1, True, draw, None)
    guessing, prompt = plain._replace(guesses=3, end=9), plain._replace(start=0, draw=None)
    costs = Costs()
    drafter = Drafter(Proposers(NgramProposer()), 4, 97, cast(DraftChoice, costs))
    each: list[tuple[tuple[Row, ...], int, float | None, int, bool]] = [
        ((plain, plain), 2, 1.0, 1, False),
        ((plain, guessing), 2, 2.0, 1, False),
        ((plain, guessing), 2, 3.0, 4, True),
        ((guessing,), 1, 4.0, 2, True),
        ((guessing,), 1, 5.0, 1, True),  # commits one token
        ((guessing, prompt), 1, 6.0, 4, True),
        ((plain, prompt), 1, 7.0, 1, False),
        ((plain,), 1, None, 1, False),
    ]
    for rows, decode, seconds, window, committed in each:
        result = StepResult(np.zeros(1, np.int64), (), (), seconds, window, committed)
        drafter.took(Batch(1, rows, decode), result)
    assert costs.told == [(2, PLAIN, 1.0), (2, CUT, 2.0), (2, 4, 3.0), (1, 2, 4.0)]


def engine_of(**more: Any) -> Engine:
    return make_engine(
        max_running=8, chunk=512, pages=400, speculative_algorithm=SpeculativeAlgorithm.AUTO,
        speculative_num_draft_tokens=4, speculative_ngram_capacity=1 << 14, **more,
    )  # fmt: skip


def answer(engine: Engine, specs: Sequence[RequestSpec]) -> list[Event]:
    for spec in specs:
        engine.submit(spec)
    return run(engine)


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("kind", ["repeating", "predicted", "shared", "guessless", "misled"])
def test_right_guesses_are_used_within_a_few_steps_and_others_cost_next_to_nothing(
    seeded: random.Random, clock: list[float], kind: str, batch: int
) -> None:
    rules = {"allowed_token_ids": (5,)} if kind == "repeating" else {}
    engine = engine_of()
    gains = []
    for turn in range(3):  # in the first, it learns what steps cost
        specs = [
            RequestSpec(f"{turn}-{row}", random_prompt(seeded, 40, 40), greedy(TOKENS, **rules))
            for row in range(batch)
        ]
        plain = answer(make_engine(max_running=8, chunk=512, pages=400), specs)
        if kind in ("predicted", "misled"):
            answers = [tuple(tokens_of(plain, spec.request_id)) for spec in specs]
            if kind == "misled":
                answers = [random_prompt(seeded, TOKENS, TOKENS) for _ in specs]
            specs = [
                replace(spec, prediction_ids=told)
                for spec, told in zip(specs, answers, strict=True)
            ]
        if kind == "shared":
            specs = [replace(spec, draft_scope=OURS) for spec in specs]
            answer(engine, specs)
        clock.clear()
        found = answer(engine, specs)
        assert_same_tokens(specs, plain, found)
        gains.append((TOKENS - 1) * (0.013 + 0.0015 * batch) / sum(clock))
    best = {1: 3.05, 8: 1.64}[batch]  # of all drafts right from the first step on
    if kind in ("guessless", "misled"):
        assert gains[-1] > 0.97
    else:
        assert gains[-1] > 1 + 0.5 * (best - 1)


def test_a_row_has_drafts_as_soon_as_they_pay(seeded: random.Random, clock: list[float]) -> None:
    """Beside seven others it decodes plainly; when they have ended it is not looked at for long."""
    specs = [
        RequestSpec(f"r{row}", random_prompt(seeded, 40, 40), greedy(100 if row else 200))
        for row in range(8)
    ]
    plain = answer(make_engine(max_running=8, chunk=512, pages=400), specs)
    # Nothing else ends the plain rows: no full page, no snapshot.
    engine = engine_of(page_size=256, mamba_track_interval=256)
    told = replace(specs[0], prediction_ids=tuple(tokens_of(plain, "r0")))
    for spec in (told, *specs[1:]):
        engine.submit(spec)
    events = step_until(
        engine, lambda new: sum(isinstance(event, RequestFinished) for event in new) >= 7
    )
    assert not engine.counters.draft_tokens
    steps = engine.counters.steps
    events += run(engine)
    assert_same_tokens(specs, plain, events)
    assert engine.counters.steps - steps < 40


def test_every_plain_step_is_timed_until_its_cost_is_known() -> None:
    choice = DraftChoice(most=4, cuts=False)
    skipped = []
    for _ in range(40):
        choice.begin(1, no_guesses)
        skipped.append(choice.skips)
        if choice.skips:
            assert choice._costs.knows_plain(1)
        else:
            choice.took(1, PLAIN, 1.0)
    first = skipped.index(True)
    assert skipped[first:].count(False) == (40 - first) // 4


def no_guesses(request: Request, most: int) -> Sequence[int]:
    raise AssertionError("no request is there to guess for")


def test_looks_that_find_nothing_leave_rows_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Making another group of rows costs far more than a look. Few steps are timed then."""
    looks, joined, timed = [], [], []
    look, add, note = GuessRecord.look, PlainTable.add, StepCosts.add

    def looked(self: GuessRecord, ahead: Ahead) -> None:
        looks.append(self.request.serial)
        look(self, ahead)

    def added(self: PlainTable, request: Request, draw: Draw, end: int) -> None:
        joined.append(request.serial)
        add(self, request, draw, end)

    def noted(self: StepCosts, rows: int, window: int, seconds: float, layered: bool) -> None:
        timed.append(seconds)
        note(self, rows, window, seconds, layered)

    monkeypatch.setattr(StepCosts, "add", noted)
    monkeypatch.setattr(GuessRecord, "look", looked)
    monkeypatch.setattr(PlainTable, "add", added)
    free = SamplingParams(max_tokens=120, ignore_eos=True, seed=1)
    rng = random.Random(5)  # of few tokens, some texts repeat by chance
    specs = [RequestSpec(f"r{row}", random_prompt(rng, 40, 40), free) for row in range(2)]
    plain = answer(make_engine(max_running=2, chunk=512, pages=400), specs)
    joined.clear()
    engine = engine_of(page_size=256, mamba_track_interval=256)
    assert_same_tokens(specs, plain, answer(engine, specs))
    assert not engine.counters.draft_tokens
    assert sorted(joined) == [1, 2]
    assert len(looks) >= 2 * 6
    assert 20 < len(timed) < engine.counters.steps / 2
