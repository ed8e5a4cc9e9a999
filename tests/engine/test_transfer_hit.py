"""KV that a decode rank's own cache holds is not sent again; the live state always is."""

import random
from dataclasses import replace

import pytest
from engine.engines import (
    PAGE,
    assert_clean,
    copy_state,
    greedy,
    hand_over,
    make_engine,
    random_prompt,
    run,
    tokens_of,
)
from engine.hash_model import VOCAB, HashModel, expected_tokens

from baton.engine.engine import Engine
from baton.engine.layout.owners import Owner
from baton.engine.layout.token_key import token_key
from baton.engine.request.events import Event
from baton.engine.request.request import RequestSpec, Reservation


def _tokens(events: list[Event], name: str) -> tuple[int, ...]:
    return tuple(tokens_of(events, name))


def _held(prompt: tuple[int, ...], name: str, source: Engine) -> tuple[RequestSpec, list[Event]]:
    spec = RequestSpec(name, prompt, greedy(12), hold=True)
    source.submit(spec)
    return spec, run(source)


def _rank(**more: object) -> Engine:
    return make_engine(tickets=3, canary=True, **more)  # type: ignore[arg-type]


def _answer(source: Engine, target: Engine, name: str, prompt: tuple[int, ...]) -> list[int]:
    """The tokens of a request that is handed over and run to its end."""
    spec, events = _held(prompt, name, source)
    hand_over(source, target, spec, _tokens(events, name))
    return tokens_of(events + run(target), name)


@pytest.mark.parametrize("shared", [8, 16, 29, 40])
def test_a_second_prompt_brings_only_what_differs(seeded: random.Random, shared: int) -> None:
    source, target = make_engine(chunk=64), _rank()
    first = random_prompt(seeded, 40, 60)
    other = (first[shared] + 1) % VOCAB if shared < len(first) else 1
    second = (*first[:shared], other, *random_prompt(seeded, 5, 30))
    assert _answer(source, target, "first", first) == expected_tokens(HashModel(), first, 12)
    spec, events = _held(second, "second", source)
    wanted = target.reserve("second", len(second), token_key(second))
    assert wanted is not None and wanted.state.kv_from == shared // PAGE * PAGE
    assert len(wanted.owned) == len(wanted.state.pages) - shared // PAGE
    assert target.status().pages[Owner.TICKET] == len(wanted.owned)
    copy_state(source, "second", target, wanted)
    target.adopt(replace(spec, hold=False, output_ids=_tokens(events, "second")), wanted)
    events += run(target)
    assert tokens_of(events, "second") == expected_tokens(HashModel(), second, 12)
    assert target.counters.transfer_hit_tokens == wanted.state.kv_from


def test_pages_are_there_for_others_as_soon_as_they_have_come(seeded: random.Random) -> None:
    """While the first request still runs: two questions about one long text."""
    source, target = make_engine(chunk=64), _rank()
    prompt = random_prompt(seeded, 48, 48)
    spec, events = _held(prompt, "first", source)
    hand_over(source, target, spec, _tokens(events, "first"))
    again = target.reserve("second", len(prompt), token_key(prompt))
    assert again is not None and again.state.kv_from == len(prompt) and not again.owned
    second, more = _held(prompt, "second", source)
    copy_state(source, "second", target, again)
    target.adopt(replace(second, hold=False, output_ids=_tokens(more, "second")), again)
    events += more + run(target)
    for name in ("first", "second"):
        assert tokens_of(events, name) == expected_tokens(HashModel(), prompt, 12)


def test_what_a_reservation_counts_on_is_not_evicted(seeded: random.Random) -> None:
    source, target = make_engine(chunk=64), _rank(pages=20)
    prompt = random_prompt(seeded, 64, 64)
    _answer(source, target, "first", prompt)
    wanted = target.reserve("second", len(prompt), token_key(prompt))
    assert wanted is not None and wanted.state.kv_from == len(prompt)
    target.flush_cache()
    target.generate([random_prompt(seeded, 60, 60) for _ in range(3)], greedy(20))
    assert_clean(target)
    spec, events = _held(prompt, "second", source)
    copy_state(source, "second", target, wanted)
    target.adopt(replace(spec, hold=False, output_ids=_tokens(events, "second")), wanted)
    events += run(target)
    assert tokens_of(events, "second") == expected_tokens(HashModel(), prompt, 12)


def test_a_reservation_that_is_given_back_leaves_the_cache_as_it_was(
    seeded: random.Random,
) -> None:
    source, target = make_engine(chunk=64), _rank()
    prompt = random_prompt(seeded, 40, 60)
    _answer(source, target, "first", prompt)
    before = target.status().pages
    wanted = target.reserve("second", len(prompt), token_key(prompt))
    assert wanted is not None and wanted.state.kv_from
    target.reservations.abandon(wanted)
    assert_clean(target)
    assert target.status().pages == before
    assert target.flush_cache(), "nothing is locked any more"


def test_pages_that_are_there_need_no_room(seeded: random.Random) -> None:
    source, target = make_engine(chunk=64), _rank(pages=13)
    prompt = random_prompt(seeded, 64, 64)
    _answer(source, target, "first", prompt)
    wanted = [
        target.reserve(f"r{i}", len(prompt) + 9, token_key((*prompt, *[i] * 9))) for i in range(3)
    ]
    both = [w for w in wanted if isinstance(w, Reservation)]
    assert len(both) == 2, "two pages each beside the eight that they share, of thirteen"
    assert target.reserve("more", 64) is None
    for reservation in both:
        target.reservations.abandon(reservation)
    assert target.reserve("more", 64) is not None, "nobody counts on the cache's pages any more"
    assert_clean(target)


def test_without_a_prefix_cache_everything_is_sent(seeded: random.Random) -> None:
    source, target = make_engine(chunk=64), _rank(prefix_caching=False)
    prompt = random_prompt(seeded, 40, 60)
    _answer(source, target, "first", prompt)
    wanted = target.reserve("second", len(prompt), token_key(prompt))
    assert wanted is not None and wanted.state.kv_from == 0 and wanted.owned == wanted.state.pages
    assert not target.status().pages[Owner.CACHE]
