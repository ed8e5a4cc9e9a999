"""Both sides of a hand-off, as the engine sees it: held requests and reservations."""

import random
from dataclasses import replace

import pytest
from engine.engines import (
    assert_clean,
    copy_state,
    finish_of,
    greedy,
    hand_over,
    make_engine,
    random_prompt,
    run,
    step_until,
    tokens_of,
)
from engine.hash_model import HashModel, expected_tokens

from baton.core.errors import RequestError, TooLargeError
from baton.core.finish import FinishReason
from baton.engine.layout.owners import Owner
from baton.engine.request.events import (
    ChunkComputed,
    Event,
    PrefillHeld,
    RequestFinished,
    Scheduled,
)
from baton.engine.request.request import RequestSpec


def test_a_held_request_waits_untouched_until_it_is_released(seeded: random.Random) -> None:
    engine = make_engine(chunk=16)
    prompt = random_prompt(seeded, 40, 60)
    engine.submit(RequestSpec("a", prompt, greedy(9), hold=True))
    assert engine.plan_step() == [Scheduled("a", will_park=True)]
    pages = engine.parked_state("a").state.pages
    assert len(pages) == -(-len(prompt) // 8), "all pages from the start: a channel reads them"
    events = run(engine)
    chunks = [e for e in events if isinstance(e, ChunkComputed)]
    assert [c.start for c in chunks] == [0, *[c.end for c in chunks][:-1]]
    assert chunks[-1].end == len(prompt)
    assert events[-1] == PrefillHeld("a")
    assert tokens_of(events, "a") == expected_tokens(HashModel(), prompt, 1)
    held = engine.parked_state("a")
    before = (
        engine.states.storage[held.state.slot].clone(),
        engine.pages.storage[list(pages)].clone(),
    )
    engine.generate([random_prompt(seeded) for _ in range(6)], greedy(20))
    assert engine.parked_state("a") == held and held.state.pages == pages
    assert engine.states.storage[held.state.slot].equal(before[0])
    assert engine.pages.storage[list(pages)].equal(before[1])
    assert not engine.has_work and engine.status().held == 1
    engine.release("a")
    assert_clean(engine)
    assert engine.status().slots[Owner.LIVE] == 0 and engine.step() == []
    with pytest.raises(RequestError):
        engine.release("a")


def test_a_request_that_ends_at_its_first_token_is_never_held() -> None:
    engine = make_engine()
    engine.submit(RequestSpec("one", (1, 2), greedy(1), hold=True))
    engine.submit(RequestSpec("none", (1, 2), greedy(0), hold=True))
    events = run(engine)
    assert not [e for e in events if isinstance(e, PrefillHeld)]
    assert finish_of(events, "one").end.reason is FinishReason.LENGTH
    assert finish_of(events, "none").usage.completion_tokens == 0


def test_past_the_held_fraction_no_prompt_that_would_be_held_is_scheduled() -> None:
    engine = make_engine(max_running=4, held_fraction=0.5, chunk=64)
    for i in range(6):
        engine.submit(RequestSpec(f"r{i}", (i,) * 16, greedy(5), hold=True))
        run(engine)
    assert engine.status().held == 2
    assert engine.status().waiting == 4 and not engine.has_work
    engine.release("r0")
    assert engine.has_work
    assert next(e for e in run(engine) if isinstance(e, PrefillHeld)) == PrefillHeld("r2")


def test_prompts_that_are_being_read_count_as_those_that_are_held(seeded: random.Random) -> None:
    """All of them come at once: none is held yet when the next one is looked at."""
    engine = make_engine(max_running=8, pages=20, held_fraction=0.5, chunk=256)
    for i in range(8):
        engine.submit(RequestSpec(f"r{i}", random_prompt(seeded, 16, 24), greedy(5), hold=True))

    def bounded(_: list[Event]) -> None:
        assert engine.status().pages[Owner.TRANSFER] <= 10
        assert engine.status().slots[Owner.TRANSFER] <= 4

    run(engine, bounded)
    waiting = engine.status().waiting
    assert waiting and not engine.has_work


def test_a_prompt_whose_destination_is_known_does_not_wait_for_one() -> None:
    engine = make_engine(max_running=4, held_fraction=0.5, chunk=64)
    for i in range(4):
        engine.submit(RequestSpec(f"r{i}", (i,) * 16, greedy(5), hold=True))
    run(engine)
    assert engine.status().held == 2 and not engine.has_work
    engine.destined("r0")
    assert engine.has_work
    run(engine)
    assert engine.status().held == 3
    engine.cancel("r1", "over")
    run(engine)
    assert engine.status().held == 3 and not engine.status().waiting
    engine.destined("r1")  # gone: nothing


def test_a_prompt_larger_than_that_part_of_the_pool_is_read_alone() -> None:
    engine = make_engine(max_running=8, pages=20, held_fraction=0.3, chunk=256)
    engine.submit(RequestSpec("large", (1,) * 120, greedy(5), hold=True))
    engine.submit(RequestSpec("small", (2,) * 8, greedy(5), hold=True))
    run(engine)
    assert (engine.status().held, engine.status().waiting) == (1, 1)
    engine.release("large")
    run(engine)
    assert (engine.status().held, engine.status().waiting) == (1, 0)


def test_held_pages_count_too() -> None:
    engine = make_engine(max_running=8, pages=20, held_fraction=0.3, chunk=64)
    for i in range(3):
        engine.submit(RequestSpec(f"r{i}", (i,) * 48, greedy(5), hold=True))
        run(engine)
    assert (engine.status().held, engine.status().waiting) == (1, 2)


def test_a_request_to_be_held_is_never_preempted() -> None:
    engine = make_engine(pages=12, max_running=6, chunk=2, held_fraction=1.0)
    for i in range(3):
        engine.submit(RequestSpec(f"r{i}", (i, 7), greedy(40)))
    step_until(engine, lambda _: not engine.status().waiting)
    engine.submit(RequestSpec("held", (2,) * 33, greedy(9), hold=True))
    preempted: list[bool] = []
    events = engine.step()
    events += run(engine, lambda _: preempted.append(engine.status().waiting > 0))
    assert any(preempted), "the pages were to run out while its chunks computed"
    chunks = [e for e in events if isinstance(e, ChunkComputed)]
    assert [c.end for c in chunks] == [*range(2, 33, 2), 33], "once each, none again"
    assert len([e for e in events if isinstance(e, RequestFinished)]) == 3


def test_reserve_refuses_what_would_take_the_pages_of_running_rows() -> None:
    engine = make_engine(pages=12, max_running=4, tickets=4)
    for i in range(3):
        engine.submit(RequestSpec(f"r{i}", (i,) * 4, greedy(40)))
    engine.step()
    assert engine.reserve("big", 56) is None, "three rows may want a page each"
    fits = engine.reserve("fits", 48)
    assert fits is not None and len(fits.state.pages) == 6
    assert engine.reserve("more", 8) is None
    engine.reservations.abandon(fits)
    again = engine.reserve("more", 8)
    assert again is not None
    assert_clean(engine)


def test_reserve_keeps_to_the_number_of_tickets() -> None:
    engine = make_engine(tickets=2)
    first, second = engine.reserve("a", 8), engine.reserve("b", 8)
    assert first is not None and second is not None
    assert engine.reserve("c", 8) is None
    assert engine.status().slots[Owner.TICKET] == 2
    with pytest.raises(RequestError, match="here already"):
        engine.reserve("a", 8)
    with pytest.raises(TooLargeError):
        engine.reserve("d", 100_000)
    engine.reservations.abandon(first)
    with pytest.raises(RequestError, match="abandoned or adopted"):
        engine.reservations.abandon(first)
    assert_clean(engine)


def test_a_ticket_never_gets_what_a_planned_step_may_still_write() -> None:
    engine = make_engine(pages=8, max_running=1, tickets=1, overlap=False)
    engine.submit(RequestSpec("a", (1,) * 60, greedy(2)))
    engine.plan_step()
    engine.cancel("a", "gone")
    assert engine.reserve("b", 56) is None, "the step's pages are free, but not yet to a peer"
    engine.run_step()
    assert engine.reserve("b", 56) is not None


def test_tickets_that_wait_for_a_forward_cost_the_cache_no_more_than_they_need(
    seeded: random.Random,
) -> None:
    engine = make_engine(pages=60, max_running=2, tickets=4, chunk=64, cached_snapshots=8)
    for _ in range(10):
        engine.generate([random_prompt(seeded, 56, 60)], greedy(2))
    engine.submit(RequestSpec("running", random_prompt(seeded, 20, 20), greedy(60)))
    engine.step()
    engine.step()  # returns with a step in flight
    assert engine.pages.ids.available < 10, "a full cache is what this is about"
    for _ in range(5):
        assert engine.reserve("a", 80) is None and engine.reserve("b", 80) is None
    assert engine.pages.ids.available < 20 + 8, "two tickets of ten pages, and no page more"
    engine.step()
    engine.step()
    assert engine.reserve("a", 80) is not None and engine.reserve("b", 80) is not None
    assert_clean(engine)


def test_adopting_the_wrong_length_leaves_the_reservation() -> None:
    engine = make_engine(tickets=1)
    reservation = engine.reserve("a", 5)
    assert reservation is not None
    good = RequestSpec("a", (1, 2, 3, 4, 5), greedy(4), output_ids=(6,))
    for bad in (
        replace(good, prompt_ids=(1, 2)),
        replace(good, output_ids=()),
        replace(good, hold=True),
        replace(good, prompt_ids=(1, 2, 3, 4, 500)),
    ):
        with pytest.raises(RequestError):
            engine.adopt(bad, reservation)
        assert_clean(engine)
    engine.adopt(good, reservation)
    assert_clean(engine)
    with pytest.raises(RequestError):
        engine.reservations.abandon(reservation)
    assert finish_of(run(engine), "a").usage.completion_tokens == 4


def test_adopted_requests_past_max_running_take_their_turn(seeded: random.Random) -> None:
    source = make_engine(max_running=8, held_fraction=1.0, chunk=64)
    target = make_engine(max_running=2, tickets=4)
    specs = [RequestSpec(f"r{i}", random_prompt(seeded), greedy(8), hold=True) for i in range(5)]
    for spec in specs:
        source.submit(spec)
    events = run(source)
    for spec in specs:
        hand_over(source, target, spec, tuple(tokens_of(events, spec.request_id)))
        assert_clean(target)
    assert target.status().running == 5
    begun = [e.request_id for e in target.plan_step() if isinstance(e, Scheduled)]
    assert begun == ["r0", "r1"], "told of when their first step is planned, not when adopted"
    stepped = run(target)
    begun += [e.request_id for e in stepped if isinstance(e, Scheduled)]
    assert begun == [spec.request_id for spec in specs], "once each"
    events += stepped
    for spec in specs:
        expected = expected_tokens(HashModel(), spec.prompt_ids, 8)
        assert tokens_of(events, spec.request_id) == expected


def test_a_first_token_that_ends_the_request_ends_it_when_it_is_adopted() -> None:
    engine = make_engine(tickets=1)
    reservation = engine.reserve("a", 3)
    assert reservation is not None
    spec = RequestSpec("a", (1, 2, 3), greedy(5, stop_token_ids=(9,)), output_ids=(9,))
    engine.adopt(spec, reservation)
    (finish,) = engine.step()
    assert finish_of([finish], "a").end.stop_token_id == 9
    assert_clean(engine)
    assert engine.status().slots[Owner.LIVE] == 0


def test_a_wrong_state_shows_in_the_tokens(seeded: random.Random) -> None:
    """The detector itself: losing the slot, or any page, must change what comes."""
    prompt = random_prompt(seeded, 30, 60)
    expected = expected_tokens(HashModel(), prompt, 12)
    for lost in ("nothing", "slot", "page"):
        source, target = make_engine(chunk=64), make_engine(tickets=1)
        spec = RequestSpec("a", prompt, greedy(12), hold=True)
        source.submit(spec)
        run(source)
        reservation = target.reserve("a", len(prompt))
        assert reservation is not None
        copy_state(source, "a", target, reservation)
        if lost == "slot":
            target.states.storage[reservation.state.slot] = 0
        elif lost == "page":
            target.pages.storage[seeded.choice(reservation.state.pages)] = 0
        target.adopt(replace(spec, hold=False, output_ids=(expected[0],)), reservation)
        got = tokens_of(run(target), "a")
        assert (got == expected[1:]) is (lost == "nothing"), lost
