"""A client's prediction of its answer: guesses for drafts, which change no token."""

import random
from dataclasses import replace

import pytest
from engine.engines import (
    finish_of,
    greedy,
    hand_over,
    make_engine,
    random_prompt,
    run,
    step_until,
    tokens_of,
)
from engine.hash_model import VOCAB
from engine.test_equivalence import random_specs
from engine.test_speculation import answers, assert_same, assert_same_tokens

from baton.core.drafts import DraftSource
from baton.core.errors import RequestError
from baton.engine.request.events import RequestFinished
from baton.engine.request.request import RequestSpec
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.engine.speculation.ngram import LONGEST
from baton.engine.speculation.prediction import SEARCHED, PredictionSource, _Place
from baton.engine.speculation.step_costs import StepCosts

NGRAM, PREDICTION = DraftSource.NGRAM, DraftSource.PREDICTION


def of(source: DraftSource, counts: tuple[int, ...]) -> int:
    """The count of one proposer."""
    return counts[list(DraftSource).index(source)]


def edited(tokens: list[int], rng: random.Random) -> tuple[int, ...]:
    """Tokens with some left out, some changed and some more among them."""
    parts: list[int] = []
    for token in tokens:
        kind = rng.random()
        if kind < 0.04:
            parts.append(rng.randrange(VOCAB))
        elif kind < 0.92:
            parts.append(token)
        if kind > 0.96:
            parts += [token, rng.randrange(VOCAB)]
    return tuple(parts)


@pytest.mark.parametrize("algorithm", [SpeculativeAlgorithm.NGRAM, SpeculativeAlgorithm.AUTO])
def test_answers_are_those_without_a_prediction(
    seeded: random.Random, monkeypatch: pytest.MonkeyPatch, algorithm: SpeculativeAlgorithm
) -> None:
    """Any sampling, grammars, tiny pools; predictions that are right, wrong, and in part right."""
    monkeypatch.setattr(StepCosts, "ratio", lambda *_: 1.1)
    specs = random_specs(seeded, 12)
    plain, _ = answers(specs)
    predicted = []
    for spec in specs:
        tokens = tokens_of(plain, spec.request_id)
        kinds = tuple(tokens), edited(tokens, seeded), random_prompt(seeded)
        predicted.append(replace(spec, prediction_ids=seeded.choice(kinds)))
    found, engine = answers(
        predicted,
        pages=seeded.choice([16, 200]),
        canary=True,
        speculative_algorithm=algorithm,
        speculative_num_draft_tokens=seeded.choice([2, 4, 8]),
    )
    for spec in specs:
        assert tokens_of(plain, spec.request_id) == tokens_of(found, spec.request_id)
    assert of(PREDICTION, engine.counters.drafts_accepted) > 0


@pytest.mark.parametrize("algorithm", [SpeculativeAlgorithm.NGRAM, SpeculativeAlgorithm.AUTO])
def test_an_answer_that_is_as_predicted_takes_few_steps(
    seeded: random.Random, monkeypatch: pytest.MonkeyPatch, algorithm: SpeculativeAlgorithm
) -> None:
    monkeypatch.setattr(StepCosts, "ratio", lambda *_: 1.1)
    spec = RequestSpec("r", random_prompt(seeded), greedy(60))
    plain, before = answers([spec])
    right = replace(spec, prediction_ids=tuple(tokens_of(plain, "r")))
    found, engine = answers(
        [right], speculative_algorithm=algorithm, speculative_num_draft_tokens=4
    )
    assert_same([spec], plain, found)
    assert engine.counters.steps < before.counters.steps / 2
    drafts = finish_of(found, "r").usage.drafts
    count = drafts.of(PREDICTION)
    assert count.accepted == count.proposed > 40
    assert drafts.verify_steps < 20
    assert engine.counters.draft_rows == drafts.verify_steps
    assert engine.counters.rows_behind  # it waits for its newest token, and that is counted


def test_a_step_waits_for_rows_that_await_a_token_for_their_drafts(seeded: random.Random) -> None:
    """Beside a plain row, a predicted one has a row in each step, not in every second one."""
    specs = [RequestSpec(f"r{row}", random_prompt(seeded, 20, 20), greedy(80)) for row in range(2)]
    plain, _ = answers(specs)
    told = replace(specs[0], prediction_ids=tuple(tokens_of(plain, "r0")))
    engine = make_engine(
        speculative_algorithm=SpeculativeAlgorithm.NGRAM, speculative_num_draft_tokens=4
    )
    for spec in (told, specs[1]):
        engine.submit(spec)
    events = step_until(
        engine, lambda new: any(isinstance(event, RequestFinished) for event in new)
    )
    assert engine.counters.steps < 80 / 4 + 10
    events += run(engine)
    assert_same_tokens(specs, plain, events)
    assert engine.counters.rows_behind


def test_a_prediction_with_a_gap_is_found_again(seeded: random.Random) -> None:
    """The answer leaves the prediction twice: once the prediction has more, once it has less."""
    spec = RequestSpec("r", random_prompt(seeded), greedy(60))
    plain, _ = answers([spec])
    tokens = tokens_of(plain, "r")
    other = [(token + 1) % VOCAB for token in tokens[:5]]
    prediction = (*tokens[:10], *other, *tokens[10:30], *tokens[40:])
    found, _ = answers(
        [replace(spec, prediction_ids=prediction)],
        speculative_algorithm=SpeculativeAlgorithm.NGRAM,
        speculative_num_draft_tokens=4,
    )
    assert_same([spec], plain, found)
    count = finish_of(found, "r").usage.drafts.of(PREDICTION)
    assert 30 < count.accepted < count.proposed


def test_a_place_far_from_the_last_one_is_not_looked_for(seeded: random.Random) -> None:
    """So that a long prediction holds up no step."""
    text = [seeded.randrange(1 << 20) for _ in range(3 * SEARCHED)]
    for away in (SEARCHED - 3 * LONGEST, SEARCHED + 3 * LONGEST):
        place = _Place(text)
        start = [*text[:100], -1]
        assert place.follow(text[:100]).tolist() == text[100:]
        assert not len(place.follow(start))
        far = [*start, *text[100 + away : 100 + away + LONGEST]]
        rest = place.follow(far).tolist()
        assert rest == (text[100 + away + LONGEST :] if away < SEARCHED else [])
        back = [*far, *text[200:204]]
        assert place.follow(back).tolist() == text[204:]


def test_a_request_handed_over_goes_on_with_its_prediction(seeded: random.Random) -> None:
    """Some of the answer is given: by the prefill worker, or by a rank that was lost."""
    spec = RequestSpec("r", random_prompt(seeded, 20, 60), greedy(40))
    plain, _ = answers([spec])
    tokens = tuple(tokens_of(plain, "r"))
    given = seeded.choice([1, 7])
    spec = replace(spec, prediction_ids=tokens, hold=True, output_ids=tokens[: given - 1])
    source = make_engine()
    target = make_engine(tickets=1, speculative_algorithm=SpeculativeAlgorithm.NGRAM)
    held = replace(spec, output_ids=tokens[:given]) if given > 1 else spec
    source.submit(held)
    run(source)
    hand_over(source, target, held, tokens[:given])
    events = run(target)
    assert tokens_of(events, "r") == list(tokens[given:])
    assert finish_of(events, "r").usage.drafts.of(PREDICTION).accepted > 20


def test_without_drafts_a_prediction_counts_nothing(seeded: random.Random) -> None:
    spec = RequestSpec("r", random_prompt(seeded), greedy(20))
    plain, _ = answers([spec])
    found, _ = answers([replace(spec, prediction_ids=tuple(tokens_of(plain, "r")))])
    assert_same([spec], plain, found)
    assert finish_of(found, "r").usage.drafts.by_proposer == ()


def test_nothing_is_kept_of_requests_that_are_over(seeded: random.Random) -> None:
    source = PredictionSource()
    spec = RequestSpec("r", random_prompt(seeded), greedy(20), prediction_ids=(1, 2, 3))
    engine = make_engine(speculative_algorithm=SpeculativeAlgorithm.NGRAM)
    drafter = engine._results._drafter
    assert drafter is not None
    drafter._texts = (source,)
    engine.submit(spec)
    run(engine, lambda _: None)
    assert source._places == {}


def test_a_prediction_outside_the_vocabulary_is_refused(seeded: random.Random) -> None:
    engine = make_engine()
    spec = RequestSpec("r", (1,), greedy(2), prediction_ids=(0, VOCAB))
    with pytest.raises(RequestError, match=r"prediction_ids\[1\]"):
        engine.submit(spec)
