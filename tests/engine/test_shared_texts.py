"""Drafts from other answers: of the same scope, in bounded memory, and without a changed token."""

import random
from dataclasses import replace
from typing import Any

import pytest
from engine.engines import (
    finish_of,
    greedy,
    make_engine,
    random_prompt,
    run,
    step_until,
    tokens_of,
)
from engine.hash_model import VOCAB
from engine.test_equivalence import random_specs
from engine.test_prediction import edited, of
from engine.test_speculation import answers, assert_same_tokens

from baton.core.cache_salt import make_salt
from baton.core.drafts import DraftSource
from baton.core.errors import ConfigError, RequestError
from baton.engine.engine import Engine
from baton.engine.request.request import RequestSpec
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.engine.speculation.ngram import LONGEST
from baton.engine.speculation.shared_source import SharedSource
from baton.engine.speculation.shared_texts import MOST_TOKENS, TOKEN_BYTES, SharedTexts
from baton.engine.speculation.step_costs import StepCosts

NGRAM, SHARED = SpeculativeAlgorithm.NGRAM, DraftSource.SHARED
OURS, THEIRS = make_salt("ours"), make_salt("theirs")


def sharing(**more: Any) -> Engine:
    options: dict[str, Any] = {"speculative_algorithm": NGRAM, "canary": True}
    options["speculative_ngram_capacity"] = 5000
    return make_engine(**options | more)


def shared_source(engine: Engine) -> SharedSource:
    assert engine._results._drafter is not None
    (source,) = [s for s in engine._results._drafter._texts if isinstance(s, SharedSource)]
    return source


def ask(engine: Engine, *specs: RequestSpec) -> list:
    for spec in specs:
        engine.submit(spec)
    return run(engine)


def test_what_only_shares_a_hash_is_not_found(seeded: random.Random) -> None:
    """Tails often meet in one place of the table of so small a ring, and the same tail of
    another scope lies where a scope had it before. What follows each tail of each scope is unlike
    all else, so it tells whose it is.
    """
    kept = LONGEST + 3 + 1  # of each text, with its end
    texts = SharedTexts(64 // kept * kept)
    scopes = [make_salt(str(i)) for i in range(4)]
    tails = [tuple(seeded.randrange(5) for _ in range(LONGEST)) for _ in range(12)]
    follows = {
        (scope, tail): [1000 + 10 * number + i for i in range(3)]
        for number, (scope, tail) in enumerate((s, t) for s in scopes for t in tails)
    }
    found = 0
    for _ in range(4000):
        scope, tail = seeded.choice(scopes), seeded.choice(tails)
        texts.add(scope, [*tail, *follows[scope, tail]])
        asked = seeded.choice(scopes), seeded.choice(tails)
        guess = list(texts.following(*asked, most=3))
        found += bool(guess)
        assert guess == follows[asked][: len(guess)]
    assert found > 100


@pytest.mark.parametrize("capacity", [40, 333, 3000])
def test_what_is_found_is_in_a_text_of_the_scope(seeded: random.Random, capacity: int) -> None:
    """Many scopes, texts that overwrite others, hashes that meet."""
    texts = SharedTexts(capacity)
    bytes_before, found = texts.nbytes, 0
    assert bytes_before <= capacity * TOKEN_BYTES
    scopes = [make_salt(str(i)) for i in range(6)]
    common = [seeded.randrange(9) for _ in range(60)]
    added: dict[bytes, list[list[int]]] = {scope: [] for scope in scopes}
    for _ in range(300):
        scope, start = seeded.choice(scopes), seeded.randrange(50)
        text = edited(common[start : start + seeded.randrange(60)], seeded)
        texts.add(scope, text)
        added[scope].append(list(text))
        for _ in range(5):
            asked, at = seeded.choice(scopes), seeded.randrange(50)
            tail = common[at : at + LONGEST]
            guess = list(texts.following(asked, tail, seeded.randrange(1, 8)))
            found += bool(guess)
            whole = str([*tail, *guess])[1:-1]
            assert not guess or any(whole in str(each)[1:-1] for each in added[asked])
    assert found > 10
    assert texts.nbytes == bytes_before
    assert set(texts._held.values()) and sum(texts._held.values()) <= capacity
    assert texts._number.keys() == set(texts._scope.values())
    for number, tokens in texts._held.items():
        assert (texts._numbers == number).sum() == tokens > 0


def test_a_text_that_repeats_itself_is_followed_as_far_as_is_asked() -> None:
    texts = SharedTexts(100)
    loop = [5, 6, 7, 8, 9] * 6
    texts.add(OURS, [1, 2, 3, 4, *loop])
    for tail in (loop[:4], loop[2:6]):
        found = list(texts.following(OURS, tail, 7))
        assert found == loop[loop.index(tail[0]) + 4 :][:7]
    assert list(texts.following(OURS, [1, 2, 3, 4], 7)) == loop[:7]
    texts.add(THEIRS, [1, 2, 3, 4, 5, 6, 7])  # of which little follows each
    assert list(texts.following(THEIRS, [2, 3, 4, 5], 7)) == [6, 7]


def test_a_scope_whose_texts_are_overwritten_is_forgotten(seeded: random.Random) -> None:
    """Every request may have a salt of its own: that costs nothing in the long run."""
    texts = SharedTexts(64)
    for i in range(1000):
        texts.add(make_salt(str(i)), random_prompt(seeded, 5, 20))
    assert len(texts._number) == len(texts._held) == len(texts._scope) <= 64 // LONGEST
    assert len(texts._number) + len(texts._free) <= 64 // LONGEST
    texts.add(OURS, [*range(MOST_TOKENS), 7])  # longer than all that is kept
    ends = range(MOST_TOKENS - 62 + LONGEST, MOST_TOKENS)
    found = {end: list(texts.following(OURS, range(end - LONGEST, end), 1)) for end in ends}
    assert all(tokens in ([], [end]) for end, tokens in found.items())
    assert sum(map(len, found.values())) > len(ends) / 2, "some have the hash of another"
    assert len(texts._number) == 1


@pytest.mark.parametrize("algorithm", [NGRAM, SpeculativeAlgorithm.AUTO])
def test_the_answer_to_the_same_prompt_is_found_in_the_first_one(
    seeded: random.Random, monkeypatch: pytest.MonkeyPatch, algorithm: SpeculativeAlgorithm
) -> None:
    monkeypatch.setattr(StepCosts, "ratio", lambda *_: 1.1)
    spec = RequestSpec("r0", random_prompt(seeded, 8, 40), greedy(60), draft_scope=OURS)
    plain, before = answers([spec])
    engine = sharing(speculative_algorithm=algorithm)
    first = ask(engine, spec)
    steps = engine.counters.steps
    second = ask(engine, replace(spec, request_id="r1"))
    for events, name in ((first, "r0"), (second, "r1")):
        assert tokens_of(events, name) == tokens_of(plain, "r0")
    assert engine.counters.steps - steps < before.counters.steps / 2
    count = finish_of(second, "r1").usage.drafts.of(SHARED)
    assert count.accepted > 35
    assert engine.counters.rows_behind


def test_nothing_is_guessed_from_the_texts_of_another_scope(seeded: random.Random) -> None:
    """Neither of another tenant, nor of a request without a scope, nor for one without."""
    prompt = random_prompt(seeded, 8, 40)
    engine = sharing()
    for i, scope in enumerate((OURS, THEIRS, b"", OURS, b"", THEIRS)):
        spec = RequestSpec(f"r{i}", prompt, greedy(40), draft_scope=scope)
        count = finish_of(ask(engine, spec), f"r{i}").usage.drafts.of(SHARED)
        again = i in (3, 5)  # of the same scope as an earlier one
        assert (count.accepted > 20) is again
        assert bool(count.proposed) is again


@pytest.mark.parametrize("algorithm", [NGRAM, SpeculativeAlgorithm.AUTO])
def test_answers_are_those_without_other_texts(
    seeded: random.Random, monkeypatch: pytest.MonkeyPatch, algorithm: SpeculativeAlgorithm
) -> None:
    """Any sampling, tiny pools; requests beside each other, of several scopes; the same again, so
    that guesses are right, and with other seeds, so that they are right at first."""
    monkeypatch.setattr(StepCosts, "ratio", lambda *_: 1.1)
    sure = RequestSpec("sure", random_prompt(seeded, 8, 40), greedy(60))  # of which much is guessed
    specs = [
        replace(spec, draft_scope=seeded.choice([OURS, THEIRS]))
        for spec in (sure, *random_specs(seeded, 8))
    ]
    seeds = [replace(spec.sampling, seed=seeded.randrange(1 << 60)) for spec in specs]
    more = [
        replace(spec, request_id=f"{spec.request_id}-{name}", sampling=sampling)
        for name in ("again", "other")
        for spec, sampling in zip(
            specs, [s.sampling for s in specs] if name == "again" else seeds, strict=True
        )
    ]
    plain, _ = answers([*specs, *more])
    engine = sharing(
        speculative_algorithm=algorithm,
        speculative_num_draft_tokens=seeded.choice([2, 4, 8]),
        pages=seeded.choice([16, 200]),
        speculative_ngram_capacity=seeded.choice([1024, 5000]),
    )
    found = [*ask(engine, *specs), *ask(engine, *more)]
    assert_same_tokens([*specs, *more], plain, found)
    assert of(SHARED, engine.counters.drafts_accepted) > 0


def test_wrong_guesses_are_not_asked_for_at_once_again(seeded: random.Random) -> None:
    """The texts have the tokens, and behind them something else."""
    prompt = random_prompt(seeded, 20, 20)
    plain, _ = answers([RequestSpec("r", prompt, greedy(60))])
    tokens = tokens_of(plain, "r")
    engine = sharing()
    source = shared_source(engine)
    text = [*prompt, *tokens]
    for end in range(LONGEST, len(text)):
        wrong = (text[end] + 1) % VOCAB
        source.texts.add(OURS, (*text[end - LONGEST : end], wrong, wrong))
    found = ask(engine, RequestSpec("r", prompt, greedy(60), draft_scope=OURS))
    assert tokens_of(found, "r") == tokens
    drafts = finish_of(found, "r").usage.drafts
    assert drafts.of(SHARED).accepted == 0 < drafts.of(SHARED).proposed
    assert engine.counters.rows_behind < 20  # one in eight tokens


def test_a_text_is_asked_again_where_the_device_was_right_in_part_only(seeded) -> None:
    engine = sharing()
    prompt = random_prompt(seeded, 20, 20)
    engine.submit(RequestSpec("r", prompt, greedy(60), draft_scope=OURS))
    request = engine._requests.named("r")
    step_until(engine, lambda _: request.output)
    source = shared_source(engine)
    source.texts.add(OURS, (*request.known_ids, 1, 2, 3))
    for drafts, accepted, asked in ((3, 3, False), (3, 1, True), (2, 2, False), (0, 0, True)):
        source.verified(request, DraftSource.NGRAM, drafts, accepted)
        assert list(source.guesses(request, 3)) == [1, 2, 3] * asked
    source.verified(request, SHARED, 3, 0)
    assert not source.guesses(request, 3)


def test_bad_options_and_scopes_are_refused() -> None:
    with pytest.raises(ConfigError, match="speculative_algorithm off"):
        make_engine(speculative_ngram_capacity=5000)
    with pytest.raises(ConfigError, match="0 or 1024 to"):
        make_engine(speculative_algorithm=NGRAM, speculative_ngram_capacity=9)
    engine = sharing()
    assert "shared texts" in engine.memory_report
    with pytest.raises(RequestError, match="16 bytes; got 3"):
        engine.submit(RequestSpec("r", (1,), greedy(2), draft_scope=b"abc"))
