"""Tests that a request gives equal tokens however it is scheduled."""

import random
from dataclasses import replace
from typing import Any

import pytest
from engine.engines import (
    PAGE,
    STEPS,
    assert_clean,
    finish_of,
    greedy,
    hand_over,
    make_engine,
    random_prompt,
    run,
    tokens_of,
)
from engine.hash_model import VOCAB, HashModel, expected_tokens, hash_config

from baton.core.sampling_params import SamplingParams
from baton.engine.engine import Engine
from baton.engine.request.events import Event, PrefillHeld, RequestFinished
from baton.engine.request.request import RequestSpec


def random_sampling(rng: random.Random, max_tokens: int) -> SamplingParams:
    """Every feature that shapes a draw, at random."""
    biases = {rng.randrange(VOCAB): rng.uniform(-9, 9) for _ in range(4)}
    return SamplingParams(
        temperature=rng.choice([0.0, 0.3, 1.0, 2.5]),
        top_k=rng.choice([0, 0, 1, 5, 40]),
        top_p=rng.choice([1.0, 0.95, 0.3]),
        min_p=rng.choice([0.0, 0.0, 0.1]),
        repetition_penalty=rng.choice([1.0, 1.0, 1.3]),
        presence_penalty=rng.choice([0.0, 0.0, 0.5]),
        frequency_penalty=rng.choice([0.0, 0.0, -0.5, 0.7]),
        seed=rng.randrange(1 << 64),
        logit_bias=rng.choice([(), (), tuple(biases.items())]),
        allowed_token_ids=rng.choice([(), (), tuple(rng.sample(range(VOCAB), 30))]),
        stop_token_ids=(rng.randrange(VOCAB),),
        min_tokens=rng.choice([0, 0, max_tokens // 2]),
        max_tokens=max_tokens,
        logprobs=rng.choice([None, None, 0, 2]),
    )


def random_specs(rng: random.Random, count: int) -> list[RequestSpec]:
    return [
        RequestSpec(f"r{i}", random_prompt(rng), random_sampling(rng, rng.randint(1, 30)))
        for i in range(count)
    ]


def alone(specs: list[RequestSpec], **options: Any) -> dict[str, list[int]]:
    """The tokens of each request, run by itself."""
    found = {}
    for spec in specs:
        engine = make_engine(**options)
        engine.submit(spec)
        found[spec.request_id] = tokens_of(run(engine), spec.request_id)
    return found


@pytest.mark.parametrize("chunk", [1, 7, 16, 64, 1000])
def test_chunk_size_and_batching_change_nothing(seeded: random.Random, chunk: int) -> None:
    specs = random_specs(seeded, 9)
    expected = alone(specs, chunk=1000)
    engine = make_engine(chunk=chunk, max_running=seeded.randint(1, 6))
    waiting = list(specs)

    def trickle(_: list[Event]) -> None:
        if waiting and seeded.random() < 0.5:
            engine.submit(waiting.pop())

    engine.submit(waiting.pop())
    events = run(engine, trickle)
    for spec in waiting:
        engine.submit(spec)
    events += run(engine)
    for spec in specs:
        assert tokens_of(events, spec.request_id) == expected[spec.request_id]


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "one by one"])
def test_tracking_at_every_page_changes_nothing(seeded: random.Random, overlap: bool) -> None:
    """Rows that leave their states in snapshots' slots, against rows that are never tracked."""
    specs = random_specs(seeded, 9)
    expected = alone(specs, prefix_caching=False)
    engine = make_engine(
        HashModel(hash_config(chunk=PAGE)),
        mamba_track_interval=PAGE,
        max_running=5,
        cached_snapshots=3,
        canary=True,
        overlap=overlap,
    )
    for spec in specs:
        engine.submit(spec)
    events = run(engine)
    for spec in specs:
        assert tokens_of(events, spec.request_id) == expected[spec.request_id]
    assert engine.counters.snapshots_donated > len(specs)


@pytest.mark.parametrize("pages", [9, 14, 22])
def test_preemption_changes_nothing(seeded: random.Random, pages: int) -> None:
    preempted = 0
    for _ in range(8):
        engine = make_engine(pages=pages, max_running=6, chunk=16)
        longest = engine.plan.max_model_len
        specs = [
            replace(spec, prompt_ids=spec.prompt_ids[: longest - 30])
            for spec in random_specs(seeded, 8)
        ]
        expected = alone(specs)
        for spec in specs:
            engine.submit(spec)
        before = 0

        def count(events: list[Event], engine: Engine = engine) -> None:
            nonlocal preempted, before
            waiting = engine.status().waiting
            preempted += waiting > before
            before = waiting

        before = engine.status().waiting
        events = run(engine, count)
        for spec in specs:
            assert tokens_of(events, spec.request_id) == expected[spec.request_id]
            assert finish_of(events, spec.request_id).error is None
    if pages == 9:
        assert preempted, "the pool was to be too small"


def test_cancelled_neighbours_change_nothing(seeded: random.Random) -> None:
    specs = random_specs(seeded, 12)
    survivors, victims = specs[:6], [s.request_id for s in specs[6:]]
    expected = alone(survivors)
    engine = make_engine(pages=30, max_running=5)
    for spec in seeded.sample(specs, len(specs)):
        engine.submit(spec)

    def cancel(_: list[Event]) -> None:
        if victims and seeded.random() < 0.4:
            engine.cancel(victims.pop(), "at random")
            assert_clean(engine)

    events = run(engine, cancel)
    for spec in survivors:
        assert tokens_of(events, spec.request_id) == expected[spec.request_id]


def test_a_hand_over_changes_nothing(seeded: random.Random) -> None:
    for _ in range(6):
        specs = random_specs(seeded, 8)
        expected = alone(specs)
        source = make_engine(max_running=4, chunk=16)
        target = make_engine(max_running=5, pages=60, tickets=8)
        events = disaggregate(source, target, specs, seeded)
        for spec in specs:
            assert tokens_of(events, spec.request_id) == expected[spec.request_id]
        for engine in (source, target):
            assert engine.status().running == engine.status().held == 0


def test_a_hand_over_takes_up_a_first_token_that_was_given(seeded: random.Random) -> None:
    prompt = random_prompt(seeded)
    expected = expected_tokens(HashModel(), prompt, 10)
    source, target = make_engine(), make_engine(tickets=1)
    spec = RequestSpec("a", prompt, greedy(10), output_ids=(expected[0],), hold=True)
    source.submit(spec)
    events = run(source)
    assert events[-1] == PrefillHeld("a")
    assert source.parked_state("a").state.tokens == len(prompt)
    hand_over(source, target, spec, (expected[0],))
    assert tokens_of(run(target), "a") == expected[1:]


def disaggregate(
    source: Engine, target: Engine, specs: list[RequestSpec], rng: random.Random
) -> list[Event]:
    """Prefill at `source`, decode at `target`; all that either says about tokens, in order."""
    for spec in specs:
        source.submit(replace(spec, hold=True))
    by_id = {spec.request_id: spec for spec in specs}
    held: list[str] = []
    events: list[Event] = []
    open_requests = set(by_id)
    for _ in range(STEPS):
        if not open_requests:
            return events
        new = source.step() + target.step()
        events += new
        held += [e.request_id for e in new if isinstance(e, PrefillHeld)]
        open_requests -= {e.request_id for e in new if isinstance(e, RequestFinished)}
        if held and rng.random() < 0.5:
            spec = by_id[held[0]]
            tokens = source.parked_state(spec.request_id).state.tokens
            probe = target.reserve(spec.request_id, tokens)
            if probe is not None:
                target.reservations.abandon(probe)
                first = tuple(tokens_of(events, spec.request_id))
                hand_over(source, target, spec, first)
                held.pop(0)
        assert_clean(source)
        assert_clean(target)
    raise AssertionError(f"unfinished: {open_requests}")
