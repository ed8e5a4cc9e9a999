"""The table of requests whose next rows differ by their position alone, against the requests."""

import random

import numpy as np
import pytest
from engine.engines import assert_clean, greedy, make_engine, random_prompt, run

from baton.core.sampling_params import SamplingParams
from baton.engine.engine import Engine
from baton.engine.request.draw import DRAW_RECORD
from baton.engine.request.events import Event, RequestFinished
from baton.engine.request.request import RequestSpec
from baton.engine.step.batch import Batch, Row


def some_sampling(rng: random.Random) -> SamplingParams:
    """Greedy or random, filtered, penalised, with a minimum length, or asking for logprobs."""
    tokens = rng.randint(10, 40)
    return SamplingParams(
        temperature=rng.choice([0.0, 0.0, 0.8]),
        top_k=rng.choice([0, 5]),
        top_p=rng.choice([1.0, 0.9]),
        seed=rng.randrange(2**64),
        presence_penalty=rng.choice([0.0, 0.5]),
        min_tokens=min(tokens, rng.choice([0, 7])),
        logit_bias=((7, -3.0), (11, 2.0)) if rng.random() < 0.3 else (),
        logprobs=rng.choice([None, 2]),
        stop_token_ids=(3,),
        max_tokens=tokens,
    )


class DecodeRows:
    """Checks the rows that decode, step by step, against their requests and their last rows."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._last: dict[tuple[int, int], Row] = {}  # by serial and admission

    def of(self, batch: Batch) -> list[Row]:
        """The rows of the planned step that decode, each of which says what its request does."""
        rows = list(batch.all_rows[: batch.decode_rows])
        assert len({row.serial for row in rows}) == len(rows), "a request has one row in a step"
        for row in rows:
            request = self._engine._requests.at(row.serial)
            assert request is not None
            assert (row.start, row.end) == (request.lengths.computed - 1, request.lengths.computed)
            assert row.end == len(request.spec.prompt_ids) + row.position
            assert (row.position, row.admission) == (
                request.lengths.sampled - 1,
                request.admissions,
            )
            assert (row.write_slot, row.table_row) == (request.state_slot, request.table_row)
        for row in batch.all_rows:
            last = self._last.get((row.serial, row.admission))
            assert last is None or row.start == last.end, "no token is computed twice, none never"
            drew = 0 if last is None else last.position + (last.draw is not None)
            assert last is None or row.position == drew
            self._last[row.serial, row.admission] = row
        return rows


def check_draws(batch: Batch) -> None:
    """Check that the columns of a step's draws are those of its rows, one by one."""
    drawing = [(i, row) for i, row in enumerate(batch.all_rows) if row.draw is not None]
    draws = batch.draws
    assert draws.each == tuple(row.draw for _, row in drawing)
    assert draws.rows.tolist() == [i for i, _ in drawing]
    assert draws.table_rows.tolist() == [row.table_row for _, row in drawing]
    expected = np.array([draw.record for draw in draws.each], DRAW_RECORD)
    assert np.array_equal(draws.records, expected)
    asking = [i for i, draw in enumerate(draws.each) if draw.sampling.logprobs is not None]
    assert [i for i, _ in batch.asking] == asking
    columns = [(r.start, r.end, r.read_slot, r.write_slot, r.table_row) for r in batch.all_rows]
    assert batch.columns.T.tolist() == [list(row) for row in columns]


@pytest.mark.parametrize("overlap", [True, False])
def test_plain_rows_are_what_each_request_would_have_planned(
    seeded: random.Random, overlap: bool
) -> None:
    """Pages are few, so that requests are preempted while they are in the table; some are
    cancelled."""
    engine = make_engine(pages=8, max_running=6, chunk=32, overlap=overlap)
    for number in range(16):
        engine.submit(
            RequestSpec(f"r{number}", random_prompt(seeded, 2, 30), some_sampling(seeded))
        )
    plain = others = 0
    checked = DecodeRows(engine)
    events: list[Event] = []
    while engine.has_work:
        planned = engine.plan_step()
        events += planned
        batch = engine._steps.planned
        if batch is not None:
            decoding = checked.of(batch)
            plain += len(batch.plain)
            others += len(decoding) - len(batch.plain)
            check_draws(batch)
        events += engine.run_step()
        if not seeded.randrange(20):
            engine.cancel(f"r{seeded.randrange(16)}", "the test said so")
        assert engine.audit() == []
    assert plain and others and engine.counters.preemptions
    assert sum(isinstance(event, RequestFinished) for event in events) == 16
    assert_clean(engine)


def test_more_requests_than_fit_the_first_columns(seeded: random.Random) -> None:
    engine = make_engine(pages=400, max_running=150, chunk=4096)
    for number in range(150):
        engine.submit(RequestSpec(f"r{number}", random_prompt(seeded, 1, 9), greedy(20)))
    most = 0
    checked = DecodeRows(engine)
    while engine.has_work:
        engine.plan_step()
        if (batch := engine._steps.planned) is not None:
            checked.of(batch)
            most = max(most, len(batch.plain))
        engine.run_step()
    assert most > 64
    assert_clean(engine)


def test_a_table_that_is_not_its_requests_is_noticed_by_the_audit() -> None:
    for column in range(6):
        engine = make_engine()
        engine.submit(RequestSpec("a", (5,) * 3, greedy(40)))
        for _ in range(5):
            engine.step()
        assert engine.audit() == []
        engine._scheduler._planner.plain._columns[column, 0] += 1
        assert any("plain" in finding for finding in engine.audit())
        engine._scheduler._planner.plain._columns[column, 0] -= 1
        run(engine)
