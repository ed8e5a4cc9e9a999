"""Tests of the scheduler's choice: which rows a step computes, and how many tokens of each."""

import random

import pytest
from engine.engines import (
    assert_clean,
    finish_of,
    greedy,
    make_engine,
    random_prompt,
    run,
    tokens_of,
)
from engine.hash_model import HashModel, expected_tokens
from hypothesis import given
from hypothesis import strategies as st

from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.state_pool import StatePool
from baton.engine.request.events import PromptScored, RequestFinished, Scheduled, TokenSampled
from baton.engine.request.request import RequestSpec
from baton.engine.schedule.chunking import chunk_end
from baton.engine.schedule.row_planner import SCORED_TOKENS
from baton.engine.step.forward_batch import ForwardBatch


class Witness(HashModel):
    """Keeps what it was asked to compute."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[ForwardBatch] = []

    def forward(self, batch: ForwardBatch, states: StatePool, pages: PagePool):  # type: ignore[no-untyped-def]
        self.steps.append(batch)
        return super().forward(batch, states, pages)


@given(
    start=st.integers(0, 500),
    length=st.integers(1, 500),
    budget=st.integers(1, 300),
    grid=st.integers(1, 64),
    first=st.booleans(),
)
def test_chunks_end_on_the_grid_where_they_can(
    start: int, length: int, budget: int, grid: int, first: bool
) -> None:
    target = start + length
    end = chunk_end(start, target, budget, grid, first)
    assert start <= end <= min(target, start + budget)
    if end == start:
        assert not first, "the first chunk of a step must get on"
        assert start + budget < (start // grid + 1) * grid, "the grid was within reach"
    elif end != target and end % grid:
        assert first and end == start + budget and end // grid == start // grid


@pytest.mark.parametrize("others", [0, 1, 3])
def test_a_prompt_beside_requests_that_decode_is_read_in_smaller_parts(
    seeded: random.Random, others: int
) -> None:
    model = Witness()
    engine = make_engine(model, chunk=64, max_running=6, pages=400, prefill_beside_decode=16)
    prompts = [random_prompt(seeded, 60, 64) for _ in range(others)]
    for i, prompt in enumerate(prompts):
        engine.submit(RequestSpec(f"r{i}", prompt, greedy(40)))
    reads = {f"r{i}" for i in range(others)}
    for _ in range(30 if reads else 0):  # until each decodes
        reads -= {e.request_id for e in engine.step() if isinstance(e, TokenSampled)}
        if not reads:
            break
    assert not reads
    before = len(model.steps)
    long = random_prompt(seeded, 120, 128)
    engine.submit(RequestSpec("long", long, greedy(3)))
    events = run(engine)
    read = [step.host.cu_seqlens[-1] - others for step in model.steps[before:]]
    reading = [tokens for tokens in read if tokens > 1]
    assert reading == ([16] * 7 + [len(long) - 112] if others else [64, len(long) - 64])
    assert tokens_of(events, "long") == expected_tokens(HashModel(), long, 3)


def test_prompts_that_are_scored_share_one_steps_rows_of_logits(seeded: random.Random) -> None:
    """The memory plan has room for SCORED_TOKENS rows of logits a step, however many ask."""
    model = Witness()
    engine = make_engine(model, chunk=2000, max_running=6, pages=400)
    for i in range(6):
        scored = greedy(3, prompt_logprobs_start=seeded.choice([0, 100]), logprobs=0)
        engine.submit(RequestSpec(f"r{i}", random_prompt(seeded, 150, 400), scored))
    events = run(engine)
    assert max(len(step.logit_tokens) for step in model.steps) <= SCORED_TOKENS + 6
    for i in range(6):
        assert finish_of(events, f"r{i}").usage.completion_tokens == 3
        found = [
            e.scores for e in events if isinstance(e, PromptScored) and e.request_id == f"r{i}"
        ]
        assert [s.start for s in found[1:]] == [s.start + len(s.tokens) for s in found[:-1]]


def test_rows_that_decode_come_first_and_prompt_tokens_keep_to_the_budget(
    seeded: random.Random,
) -> None:
    model = Witness()
    engine = make_engine(model, chunk=16, max_running=6)
    for i in range(12):
        engine.submit(RequestSpec(f"r{i}", random_prompt(seeded), greedy(20)))
    run(engine)
    mixed = 0
    for step in model.steps:
        lengths = [
            b - a for a, b in zip(step.host.cu_seqlens, step.host.cu_seqlens[1:], strict=False)
        ]
        assert all(length == 1 for length in lengths[: step.decode_rows])
        assert sum(lengths[step.decode_rows :]) <= 16
        assert len(lengths) <= 6
        mixed += 0 < step.decode_rows < len(lengths)
    assert mixed, "prompts were to be computed beside rows that decode"


@pytest.mark.parametrize("asked", [True, False])
def test_lengths_stay_on_the_device_unless_an_attention_asks_for_them(
    seeded: random.Random, asked: bool
) -> None:
    model = Witness()
    model.needs_cpu_seq_lens = asked
    engine = make_engine(model)
    engine.submit(RequestSpec("a", random_prompt(seeded), greedy(4)))
    run(engine)
    for step in model.steps:
        on_device = tuple(step.kv_lens.tolist())
        assert step.host.kv_lens == (on_device if asked else ())


def test_a_step_scores_a_bounded_number_of_prompt_tokens(seeded: random.Random) -> None:
    model = Witness()
    engine = make_engine(model, chunk=1000)
    prompt = random_prompt(seeded, 380, 400)
    engine.submit(RequestSpec("a", prompt, greedy(1, prompt_logprobs_start=20)))
    run(engine)
    wanted = [step.logit_tokens.shape[0] for step in model.steps]
    assert len(wanted) == 2 and max(wanted) <= 256 + 1


def test_requests_are_admitted_in_the_order_they_came(seeded: random.Random) -> None:
    engine = make_engine(pages=20, max_running=3)
    names = [f"r{i}" for i in range(9)]
    for name in names:
        engine.submit(RequestSpec(name, random_prompt(seeded), greedy(9)))
    scheduled = [e.request_id for e in run(engine) if isinstance(e, Scheduled)]
    assert scheduled == names, "once each, first come first served, preempted or not"


def test_the_youngest_gives_way_when_pages_run_out() -> None:
    engine = make_engine(pages=6, max_running=2, chunk=64)
    for token, name in enumerate(("old", "young", "new")):
        engine.submit(RequestSpec(name, (token,) * 8, greedy(30)))
    events = run(engine)
    order = [e.request_id for e in events if isinstance(e, RequestFinished)]
    assert order == ["old", "young", "new"]
    old_ends = next(i for i, e in enumerate(events) if isinstance(e, RequestFinished))
    assert events.index(Scheduled("new")) > old_ends, "the preempted goes on before the new begin"
    indices = [e.index for e in events if isinstance(e, TokenSampled) and e.request_id == "young"]
    assert indices == list(range(30)), "nothing is sampled twice"


def test_scheduled_is_told_before_the_forward_runs() -> None:
    model = Witness()
    engine = make_engine(model, overlap=False)
    engine.submit(RequestSpec("a", (1, 2), greedy(1)))
    assert engine.plan_step() == [Scheduled("a")]
    assert not model.steps
    assert finish_of(engine.run_step(), "a").usage.completion_tokens == 1


def test_a_request_cancelled_between_plan_and_run_leaves_no_trace() -> None:
    engine = make_engine()
    for name in "ab":
        engine.submit(RequestSpec(name, (1, 2), greedy(4)))
    engine.plan_step()
    engine.cancel("a", "gone")
    assert_clean(engine)
    assert engine.states.ids.available_to_channels < engine.states.ids.available
    events = run(engine)
    assert {e.request_id for e in events if isinstance(e, TokenSampled)} == {"b"}
    assert engine.states.ids.available_to_channels == engine.states.ids.available


def test_the_status_counts_tokens_until_all_decode() -> None:
    engine = make_engine(chunk=16, max_running=2)
    for name in ("a", "b", "c"):
        engine.submit(RequestSpec(name, tuple(range(40)), greedy(30)))
    counts = [engine.status().queued_tokens]
    while engine.has_work and len(counts) < 12:
        engine.step()
        counts.append(engine.status().queued_tokens)
    assert counts[0] == 120 and counts[-1] == 40, "the third waits while two decode"
    assert counts == sorted(counts, reverse=True)
    engine.cancel("a", "room for the third")
    for _ in range(12):
        engine.step()
    assert not engine.status().queued_tokens
