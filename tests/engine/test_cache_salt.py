"""Requests of different cache salts share nothing in an engine; requests of one salt share all."""

import random
from dataclasses import dataclass, replace

import pytest
from engine.engines import (
    PAGE,
    assert_clean,
    finish_of,
    greedy,
    hand_over,
    make_engine,
    random_prompt,
    run,
    tokens_of,
)
from engine.hash_model import VOCAB, HashModel, expected_tokens
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.core.cache_salt import SHARED, make_salt
from baton.core.errors import InvariantError, RequestError
from baton.engine.cache.salted_prefix import SaltedPrefix
from baton.engine.engine import Engine
from baton.engine.layout.owners import Owner
from baton.engine.layout.token_key import token_key
from baton.engine.request.request import RequestSpec

GRID = 16
ADA, BOB = make_salt("ada"), make_salt("bob")
SALTS = (SHARED, ADA, BOB)


def answer(engine: Engine, name: str, prompt: tuple[int, ...], salt: bytes, count: int = 9) -> int:
    """Return the cached tokens of a request that is run to its end; its tokens must be right."""
    engine.submit(RequestSpec(name, prompt, greedy(count), cache_salt=salt))
    events = run(engine)
    assert tokens_of(events, name) == expected_tokens(HashModel(), prompt, count)
    return finish_of(events, name).usage.cached_tokens


@pytest.mark.parametrize("salt", SALTS)
@pytest.mark.parametrize("other", SALTS)
def test_a_prompt_hits_what_its_own_salt_has_cached_and_nothing_else(
    seeded: random.Random, salt: bytes, other: bytes
) -> None:
    engine = make_engine(canary=True)
    prompt = random_prompt(seeded, 2 * GRID, 60)
    assert answer(engine, "first", prompt, salt) == 0
    hit = (len(prompt) - 1) // GRID * GRID
    assert answer(engine, "second", prompt, other) == (hit if other == salt else 0)
    assert answer(engine, "third", prompt, salt) == hit
    counters = engine.counters
    assert counters.kv_hit_tokens >= hit
    if other != salt:
        assert counters.state_hit_tokens == hit, "the third's alone"


@dataclass(frozen=True)
class Turn:
    """One request of one tenant: a prompt that may continue an earlier one."""

    tenant: int
    tokens: tuple[int, ...]


turns = st.lists(
    st.builds(
        Turn,
        st.integers(0, 1),
        # Few distinct pages, so that tenants often send the same prefixes.
        st.lists(st.integers(0, 1), min_size=1, max_size=4).map(
            lambda runs: (*((7 * run + i) % VOCAB for run in runs for i in range(GRID)), 3)
        ),
    ),
    min_size=2,
    max_size=7,
)


@settings(max_examples=25, deadline=None)
@given(turns=turns)
def test_two_tenants_that_take_turns_see_two_caches(turns: list[Turn]) -> None:
    """One tenant's requests do not change what the other's hit, in KV or in state."""
    together = make_engine(pages=400, cached_snapshots=80)
    apart = [make_engine(pages=400, cached_snapshots=80) for _ in range(2)]
    for number, turn in enumerate(turns):
        name, before = str(number), replace(together.counters)
        own = apart[turn.tenant]
        own_before = replace(own.counters)
        salt = (ADA, BOB)[turn.tenant]
        hit = answer(together, name, turn.tokens, salt, 5)
        assert hit == answer(own, name, turn.tokens, SHARED, 5)
        for field in ("kv_hit_tokens", "state_hit_tokens", "branch_points", "snapshots_donated"):
            changed = getattr(together.counters, field) - getattr(before, field)
            expected = getattr(own.counters, field) - getattr(own_before, field)
            assert changed == expected, field


@pytest.mark.parametrize("pages", [12, 30, 200])
def test_preempted_chunked_and_cached_requests_give_the_same_tokens_with_salts(
    seeded: random.Random, pages: int
) -> None:
    """Prompts of few prefixes under all salts at once; the canary compares every read."""
    engine = make_engine(pages=pages, max_running=6, canary=True)
    stems = [random_prompt(seeded, 16, 24) for _ in range(2)]
    specs = [
        RequestSpec(
            f"r{number}",
            (*seeded.choice(stems), *random_prompt(seeded, 1, 12)),
            greedy(seeded.randint(20, 40)),
            cache_salt=seeded.choice(SALTS),
        )
        for number in range(16)
    ]
    for spec in specs:
        engine.submit(spec)
    events = run(engine)
    for spec in specs:
        expected = expected_tokens(HashModel(), spec.prompt_ids, spec.sampling.max_tokens)
        assert tokens_of(events, spec.request_id) == expected
    assert pages > 12 or engine.counters.preemptions, "the pool was to be too small"


def test_a_preempted_request_resumes_from_its_own_salts_cache(seeded: random.Random) -> None:
    """It finds the prefix that it left under its salt when it is admitted again."""
    for _ in range(20):
        engine = make_engine(pages=12, max_running=2, canary=True)
        for number, salt in enumerate((ADA, BOB)):
            prompt = random_prompt(seeded, 40, 40)
            engine.submit(RequestSpec(str(number), prompt, greedy(20), cache_salt=salt))
        run(engine)
        if engine.counters.preemptions and engine.counters.state_hit_tokens:
            return
    raise AssertionError("no preempted request found its own prefix")


def test_a_hand_over_leaves_the_prompt_under_its_salt_on_both_sides(seeded: random.Random) -> None:
    source, target = make_engine(canary=True), make_engine(tickets=2, canary=True)
    prompt = random_prompt(seeded, 3 * GRID, 3 * GRID)
    whole = len(prompt) // PAGE * PAGE
    sent = {}
    for name, salt in (("a", ADA), ("b", BOB), ("again", ADA)):
        spec = RequestSpec(name, prompt, greedy(9), hold=True, cache_salt=salt)
        source.submit(spec)
        first = tuple(tokens_of(run(source), name))
        before = target.counters.transfer_hit_tokens
        hand_over(source, target, spec, first)
        sent[name] = target.counters.transfer_hit_tokens - before
        events = run(target)
        assert [*first, *tokens_of(events, name)] == expected_tokens(HashModel(), prompt, 9)
        assert_clean(source)
    assert sent == {"a": 0, "b": 0, "again": whole}


@pytest.mark.parametrize(
    ("salt", "other"), [(s, o) for s in SALTS for o in SALTS if s != o], ids=lambda s: s.hex()[:4]
)
def test_a_reservation_is_adopted_by_a_request_of_its_salt_alone(
    seeded: random.Random, salt: bytes, other: bytes
) -> None:
    target = make_engine(tickets=1)
    prompt = random_prompt(seeded, 20, 20)
    reservation = target.reserve("a", len(prompt), token_key(prompt), salt=salt)
    assert reservation is not None
    spec = RequestSpec("a", prompt, greedy(4), output_ids=(1,), cache_salt=other)
    with pytest.raises(RequestError, match="another cache salt"):
        target.adopt(spec, reservation)
    target.reservations.abandon(reservation)
    assert target.status().pages[Owner.TICKET] == 0


def test_a_prefix_is_lent_and_kept_under_its_salt(seeded: random.Random) -> None:
    source, target = make_engine(canary=True), make_engine(tickets=2, canary=True)
    prompt = random_prompt(seeded, 3 * GRID, 3 * GRID)
    answer(source, "first", prompt, ADA)
    for stranger in (SHARED, BOB):
        assert source.prefixes.lend(SaltedPrefix(prompt, stranger)) is None
        assert source.prefixes.state_tokens(SaltedPrefix(prompt, stranger)) == 0
    assert source.prefixes.state_tokens(SaltedPrefix(prompt, ADA)) == len(prompt)
    loan = source.prefixes.lend(SaltedPrefix(prompt, ADA))
    assert loan is not None and loan.state.tokens == len(prompt)
    reservation = target.reserve("prefix", loan.state.tokens, token_key(prompt), salt=ADA)
    assert reservation is not None
    target.states.storage[reservation.state.slot] = source.states.storage[loan.state.slot]
    target.pages.storage[list(reservation.state.pages)] = source.pages.storage[
        list(loan.state.pages)
    ]
    source.prefixes.give_back(loan)
    target.prefixes.keep(reservation, prompt)
    longer = (*prompt, *random_prompt(seeded, 9, 9))
    assert answer(target, "b", longer, BOB) == 0
    assert answer(target, "a", longer, ADA) == len(prompt)


def test_no_salt_pins_memory_and_a_flush_empties_all(seeded: random.Random) -> None:
    """A salt that is used once goes as the oldest does, and leaves no root behind."""
    engine = make_engine(pages=60, max_running=2)
    tree = engine._pools.cache.tree
    old = random_prompt(seeded, 40, 40)
    answer(engine, "old", old, ADA)
    for number in range(12):
        answer(engine, str(number), random_prompt(seeded, 40, 40), make_salt(str(number)))
    assert ADA not in tree.roots and answer(engine, "again", old, ADA) == 0
    assert len(tree.roots) > 2
    assert engine.flush_cache()
    assert set(tree.roots) == {SHARED}
    assert_clean(engine)


def test_the_canary_sings_when_one_salt_reads_anothers_pages(seeded: random.Random) -> None:
    engine = make_engine(canary=True)
    prompt = random_prompt(seeded, 40, 40)
    answer(engine, "first", prompt, ADA)
    roots = engine._pools.cache.tree.roots
    roots[BOB] = roots.pop(ADA)
    engine.submit(RequestSpec("second", prompt, greedy(4), cache_salt=BOB))
    with pytest.raises(InvariantError, match="of another"):
        for _ in range(9):
            engine.step()
    assert any("another salt" in finding for finding in engine.audit())


def test_a_salt_of_a_wrong_length_is_refused() -> None:
    engine = make_engine()
    with pytest.raises(RequestError, match="16 bytes; got 3"):
        engine.submit(RequestSpec("a", (1, 2), greedy(), cache_salt=b"ada"))


def test_no_repr_shows_a_salt() -> None:
    spec = RequestSpec("a", (1, 2), greedy(), cache_salt=ADA)
    assert repr(ADA) not in repr(spec) + repr(SaltedPrefix((1,), ADA))
