"""Tests of the order of requests in an engine: by priority, by age among equals, and without
starvation."""

import random

import pytest
from engine.engines import greedy, make_engine, random_prompt, run, step_until, tokens_of
from engine.hash_model import HashModel, expected_tokens

from baton.engine.request.events import Event, RequestFinished, Scheduled, TokenSampled
from baton.engine.request.request import RequestSpec


def scheduled(events: list[Event]) -> list[str]:
    return [event.request_id for event in events if isinstance(event, Scheduled)]


def first_tokens(events: list[Event]) -> list[str]:
    """Return the requests' ids in the order of their first tokens."""
    return [e.request_id for e in events if isinstance(e, TokenSampled) and e.index == 0]


def test_the_larger_goes_first_and_equals_are_served_as_they_came(seeded: random.Random) -> None:
    engine = make_engine(max_running=1)
    priorities = [seeded.randint(-2, 2) for _ in range(24)]  # fewer than one step lets one pass
    prompts = [random_prompt(seeded) for _ in priorities]
    for number, (priority, prompt) in enumerate(zip(priorities, prompts, strict=True)):
        engine.submit(RequestSpec(f"r{number}", prompt, greedy(3), priority=priority))
    events = run(engine)
    order = sorted(range(24), key=lambda number: (-priorities[number], number))
    assert scheduled(events) == [f"r{number}" for number in order]
    for number, prompt in enumerate(prompts):
        assert tokens_of(events, f"r{number}") == expected_tokens(HashModel(), prompt, 3)


@pytest.mark.parametrize("steps", [1, 2])
def test_each_step_of_priority_lets_32_later_ones_pass_and_no_more(steps: int) -> None:
    engine = make_engine(max_running=1)
    engine.submit(RequestSpec("running", (1, 2), greedy(2)))
    engine.submit(RequestSpec("low", (3, 4), greedy(2), priority=-steps))
    came = 0

    def one_more(events: list[Event]) -> None:
        """Somebody is always there to pass it."""
        nonlocal came
        if came < 200 and any(isinstance(event, Scheduled) for event in events):
            for _ in range(2):
                came += 1
                engine.submit(RequestSpec(f"r{came}", (came % 90,), greedy(2)))

    order = scheduled(run(engine, one_more))
    assert order.index("low") == 32 * steps  # "running", and all that came up to 32 steps later


def test_a_long_prompt_gives_way_to_what_is_more_urgent(seeded: random.Random) -> None:
    long, short = random_prompt(seeded, 300, 320), random_prompt(seeded, 20, 30)
    for priority, order in ((0, ["long", "short"]), (1, ["short", "long"])):
        engine = make_engine(chunk=16)
        engine.submit(RequestSpec("long", long, greedy(4)))
        events = engine.step()
        engine.submit(RequestSpec("short", short, greedy(4), priority=priority))
        events += run(engine)
        assert first_tokens(events) == order
        for name, prompt in (("long", long), ("short", short)):
            assert tokens_of(events, name) == expected_tokens(HashModel(), prompt, 4)


def test_so_does_one_that_is_to_be_held(seeded: random.Random) -> None:
    engine = make_engine(chunk=16, held_fraction=1.0)
    engine.submit(RequestSpec("long", random_prompt(seeded, 300, 320), greedy(4), hold=True))
    events = engine.step()
    engine.submit(RequestSpec("short", (7,) * 20, greedy(4), hold=True, priority=1))
    assert first_tokens(events + run(engine)) == ["short", "long"]


def test_when_pages_run_out_the_least_urgent_gives_way_though_it_came_first() -> None:
    engine = make_engine(pages=6, max_running=2, chunk=64)
    engine.submit(RequestSpec("low", (0,) * 8, greedy(30), priority=-1))
    engine.submit(RequestSpec("high", (1,) * 8, greedy(30)))
    events = run(engine)
    assert [e.request_id for e in events if isinstance(e, RequestFinished)] == ["high", "low"]
    assert engine.counters.preemptions
    for token, name in enumerate(("low", "high")):
        assert tokens_of(events, name) == expected_tokens(HashModel(), (token,) * 8, 30)


def test_a_preempted_request_lets_more_urgent_tickets_pass_but_not_for_ever() -> None:
    engine = make_engine(pages=8, max_running=3, chunk=64, tickets=2, overlap=False)
    for token, name in enumerate(("old", "young")):
        engine.submit(RequestSpec(name, (token,) * 8, greedy(50)))
    events = step_until(engine, lambda _: engine.counters.preemptions)
    assert engine.reserve("equal", 4) is None, "a request that had begun waits for memory"
    urgent = engine.reserve("urgent", 4, priority=1)
    assert urgent is not None
    engine.reservations.abandon(urgent)
    for number in range(32):
        engine.submit(RequestSpec(f"r{number}", (number,), greedy(1)))
        engine.cancel(f"r{number}", "it has counted")
    assert engine.reserve("urgent", 4, priority=1) is None
    events += run(engine)
    assert tokens_of(events, "young") == expected_tokens(HashModel(), (1,) * 8, 50)
