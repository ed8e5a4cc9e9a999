"""Prefixes that go from one engine's cache to another's."""

import random

import pytest
from engine.engines import PAGE, assert_clean, greedy, make_engine, random_prompt, run
from engine.hash_model import HashModel, expected_tokens

from baton.core.errors import RequestError
from baton.engine.cache.salted_prefix import SaltedPrefix
from baton.engine.engine import Engine
from baton.engine.handoff.prefix_share import Loan
from baton.engine.layout.owners import Owner
from baton.engine.layout.token_key import token_key
from baton.engine.request.request import RequestSpec, Reservation

GRID = 16


def answered(engine: Engine, prompt: tuple[int, ...], count: int = 40) -> tuple[int, ...]:
    """Prompt and answer, which the engine has now in its cache."""
    (output,) = engine.generate([prompt], greedy(count))
    return (*prompt, *output.token_ids)


def copy(source: Engine, loan: Loan, target: Engine, into: Reservation) -> None:
    """Copy a lent prefix into a reservation, as a channel does."""
    target.states.storage[into.state.slot] = source.states.storage[loan.state.slot]
    for mine, theirs in zip(loan.state.pages, into.state.pages, strict=True):
        if theirs in into.owned:
            target.pages.storage[theirs] = source.pages.storage[mine]


def passed(source: Engine, target: Engine, token_ids: tuple[int, ...]) -> Reservation:
    """The deepest prefix that `source` has, in `target`'s cache."""
    loan = source.prefixes.lend(SaltedPrefix(token_ids))
    assert loan is not None
    prefix = token_ids[: loan.state.tokens]
    reservation = target.reserve("prefix", loan.state.tokens, token_key(prefix))
    assert reservation is not None
    assert_clean(source)
    copy(source, loan, target, reservation)
    source.prefixes.give_back(loan)
    target.prefixes.keep(reservation, prefix)
    assert_clean(source)
    assert_clean(target)
    return reservation


@pytest.mark.parametrize("knows_the_prompt", [True, False])
def test_a_prefix_that_was_passed_on_is_a_compute_hit(
    seeded: random.Random, knows_the_prompt: bool
) -> None:
    source, target = make_engine(canary=True), make_engine(canary=True, tickets=1)
    prompt = random_prompt(seeded, 48, 60)
    if knows_the_prompt:
        answered(target, prompt, 1)
    tokens = answered(source, prompt)
    came = passed(source, target, tokens)
    assert came.state.tokens == (len(tokens) - 1) // GRID * GRID
    assert came.state.kv_from == (len(prompt) // PAGE * PAGE if knows_the_prompt else 0)
    second = (*tokens, *random_prompt(seeded, 5, 20))
    (output,) = target.generate([second], greedy(9))
    assert output.finished.usage.cached_tokens == came.state.tokens
    assert list(output.token_ids) == expected_tokens(HashModel(), second, 9)


def test_what_is_lent_stays_until_it_is_given_back(seeded: random.Random) -> None:
    source, target = make_engine(pages=40), make_engine(tickets=1)
    tokens = answered(source, random_prompt(seeded, 48, 60))
    loan = source.prefixes.lend(SaltedPrefix(tokens))
    assert loan is not None
    before = source.states.storage[loan.state.slot].clone()
    pages = source.pages.storage[list(loan.state.pages)].clone()
    assert not source.flush_cache()
    source.generate([random_prompt(seeded, 60, 60) for _ in range(6)], greedy(30))
    assert_clean(source)
    assert source.states.storage[loan.state.slot].equal(before)
    assert source.pages.storage[list(loan.state.pages)].equal(pages)
    source.prefixes.give_back(loan)
    assert source.flush_cache(), "nothing is locked any more"
    with pytest.raises(KeyError):
        source.prefixes.give_back(loan)
    assert target.prefixes.lend(SaltedPrefix(tokens)) is None, "it has never seen them"


def test_what_came_twice_is_kept_once(seeded: random.Random) -> None:
    """The prompt was computed here while its prefix was on its way."""
    source, target = make_engine(), make_engine(tickets=1, canary=True)
    tokens = answered(source, random_prompt(seeded, 48, 60))
    loan = source.prefixes.lend(SaltedPrefix(tokens))
    assert loan is not None
    prefix = tokens[: loan.state.tokens]
    reservation = target.reserve("prefix", loan.state.tokens, token_key(prefix))
    assert reservation is not None and reservation.state.kv_from == 0
    answered(target, tokens, 1)
    copy(source, loan, target, reservation)
    before = target.status()
    target.prefixes.keep(reservation, prefix)
    assert_clean(target)
    after = target.status()
    assert after.pages[Owner.CACHE] == before.pages[Owner.CACHE]
    assert after.slots[Owner.CACHE] == before.slots[Owner.CACHE]
    assert after.pages[Owner.TICKET] == after.slots[Owner.TICKET] == 0


def test_a_prefix_of_another_length_is_refused_and_the_reservation_stands(
    seeded: random.Random,
) -> None:
    target = make_engine(tickets=2)
    prompt = random_prompt(seeded, 3 * PAGE, 3 * PAGE)
    whole, part = target.reserve("whole", 2 * PAGE), target.reserve("part", 2 * PAGE - 1)
    assert whole is not None and part is not None
    for reservation, tokens in ((whole, 3 * PAGE), (part, 2 * PAGE - 1)):
        with pytest.raises(RequestError, match="whole pages"):
            target.prefixes.keep(reservation, prompt[:tokens])
        assert_clean(target)
        target.reservations.abandon(reservation)
    assert target.status().pages[Owner.TICKET] == 0


def test_a_request_says_what_it_leaves_to_resume_from(seeded: random.Random) -> None:
    engine = make_engine()
    prompt = random_prompt(seeded, 20, 40)
    (output,) = engine.generate([prompt], greedy(30))
    assert output.finished.state_tokens == (len(prompt) + 29) // GRID * GRID
    answered = SaltedPrefix((*prompt, *output.token_ids))
    assert engine.prefixes.state_tokens(answered) == output.finished.state_tokens
    spec = RequestSpec("held", prompt, greedy(5), hold=True)
    engine.submit(spec)
    run(engine)
    assert engine.parked_state("held").cached_state == len(prompt) // GRID * GRID
    engine.release("held")
    without = make_engine(prefix_caching=False)
    (output,) = without.generate([prompt], greedy(30))
    assert output.finished.state_tokens == 0
