"""`auto` with a model that guesses by a layer of its own, over whole answers, by steps whose
seconds are set as in `test_draft_gain`; each draft of the layer costs a twentieth of a plain step.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from engine.engines import greedy, make_engine, random_prompt, run, tokens_of
from engine.hash_model import VOCAB
from engine.proposers import Known, KnownOnDevice
from engine.test_speculation import assert_same_tokens

from baton.core.drafts import DraftSource
from baton.engine.engine import Engine
from baton.engine.request.events import Event, RequestFinished
from baton.engine.request.request import RequestSpec
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.engine.speculation.drafter import Drafter
from baton.engine.speculation.ngram import DeviceNgram
from baton.engine.step.batch import Batch
from baton.engine.step.step_result import StepResult

TOKENS = 96
PLAIN_S, ROW_S, DRAFT_S = 0.013, 0.0015, 0.0007


class Clock:
    """The seconds of steps of rows that decode, as the engine is told them.

    wide: a multiple of what a row costs beside the first token of each.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.wide = 1.0

    def of(self, batch: Batch, window: int) -> float:
        drafts = max((row.layered for row in batch.decoding), default=0)
        rows = batch.decode_rows
        more = rows * (window - 1) * self.wide
        return PLAIN_S + ROW_S * (rows + more) + DRAFT_S * drafts


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    took = Drafter.took

    def told(self: Drafter, batch: Batch, result: StepResult) -> None:
        known = clock.of(batch, result.window)
        if not batch.prompts:
            clock.seconds += known
        took(self, batch, replace(result, seconds=known))

    monkeypatch.setattr(Drafter, "took", told)
    return clock


def answer(engine: Engine, specs: Sequence[RequestSpec]) -> list[Event]:
    for spec in specs:
        engine.submit(spec)
    return run(engine)


def plain_engine() -> Engine:
    return make_engine(max_running=8, chunk=512, pages=400)


def engine_of(layer: "Layer") -> Engine:
    return make_engine(
        max_running=8,
        chunk=512,
        pages=400,
        guesser=DeviceNgram(),
        layer=layer,
        speculative_algorithm=SpeculativeAlgorithm.AUTO,
        speculative_num_draft_tokens=4,
    )


class Layer(KnownOnDevice):
    """Guesses what follows in sequences that are told later, each token right with a probability
    that may change. It proposes for every row that has guesses of it."""

    def __init__(self, right: float, rng: random.Random) -> None:
        self._of = Known([], right, VOCAB, rng)
        super().__init__(self._of)
        self._mine = self._of

    def tell(self, sequences: Sequence[Sequence[int]], right: float) -> None:
        self._of._sequences = [tuple(sequence) for sequence in sequences]
        self._of._right = right


def counts_of(engine: Engine, source: DraftSource) -> tuple[int, int]:
    """Drafts of a source that were proposed, and those that were right."""
    place = list(DraftSource).index(source)
    counters = engine.counters
    return counters.drafts_proposed[place], counters.drafts_accepted[place]


def turn(
    rng: random.Random, plain: Engine, layer: Layer, right: float, batch: int, **rules: object
) -> tuple[list[RequestSpec], list[Event]]:
    """Requests whose answers the layer guesses, and these answers."""
    specs = [
        RequestSpec(f"{rng.random()}", random_prompt(rng, 40, 40), greedy(TOKENS, **rules))
        for _ in range(batch)
    ]
    found = answer(plain, specs)
    layer.tell([(*s.prompt_ids, *tokens_of(found, s.request_id)) for s in specs], right)
    return specs, found


def gain_of(clock: Clock, batch: int) -> float:
    """Plain seconds over those since the last call."""
    seconds, clock.seconds = clock.seconds, 0.0
    return (TOKENS - 1) * (PLAIN_S + ROW_S * batch) / seconds


def best_gain(batch: int, right: float) -> float:
    """The gain of the best window, if everything were known from the first step on."""
    plain = PLAIN_S + ROW_S * batch
    gains = [1.0]
    for window in (2, 4):
        tokens = sum(right**depth for depth in range(window))
        seconds = PLAIN_S + ROW_S * batch * window + DRAFT_S * (window - 1)
        gains.append(tokens * plain / seconds)
    return max(gains)


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("right", [0.0, 0.3, 0.6, 0.95])
def test_the_layer_drafts_as_far_as_it_pays(
    seeded: random.Random, clock: Clock, right: float, batch: int
) -> None:
    layer = Layer(right, seeded)
    engine, plain = engine_of(layer), plain_engine()
    gains = []
    for _ in range(5):  # in the first, it learns what steps cost
        specs, expected = turn(seeded, plain, layer, right, batch)
        clock.seconds = 0.0
        assert_same_tokens(specs, expected, answer(engine, specs))
        gains.append(gain_of(clock, batch))
    proposed, accepted = counts_of(engine, DraftSource.MTP)
    best = best_gain(batch, right)
    whole = len(gains[1:]) / sum(1 / gain for gain in gains[1:])
    print(gains, best, proposed, accepted)
    assert whole > 0.97
    if best > 1.2:
        assert whole > 1 + 0.5 * (best - 1)
    assert 0 < proposed and (right == 0) == (accepted == 0)


def test_a_row_that_repeats_itself_is_guessed_by_ngrams_beside_the_layer(
    seeded: random.Random, clock: Clock
) -> None:
    """The layer guesses all answers alike; what repeats itself n-grams guess for less."""
    layer = Layer(0.5, seeded)
    engine, plain = engine_of(layer), plain_engine()
    for _ in range(3):
        specs, expected = turn(seeded, plain, layer, 0.5, 1, allowed_token_ids=(5,))
        assert_same_tokens(specs, expected, answer(engine, specs))
    specs, expected = turn(seeded, plain, layer, 0.5, 1, allowed_token_ids=(5,))
    events = answer(engine, specs)
    assert_same_tokens(specs, expected, events)
    (finish,) = [e for e in events if isinstance(e, RequestFinished)]
    drafts = finish.usage.drafts
    assert drafts.of(DraftSource.NGRAM).accepted > 40
    assert drafts.of(DraftSource.MTP).proposed < 20


def test_a_layer_that_has_become_right_is_found_out(seeded: random.Random, clock: Clock) -> None:
    """It is wrong for many answers, then right; what it costs until then is bounded."""
    layer = Layer(0.0, seeded)
    engine, plain = engine_of(layer), plain_engine()
    seconds = 0.0
    for _ in range(8):
        specs, expected = turn(seeded, plain, layer, 0.0, 8)
        clock.seconds = 0.0
        assert_same_tokens(specs, expected, answer(engine, specs))
        seconds += clock.seconds
    assert 8 * (TOKENS - 1) * (PLAIN_S + ROW_S * 8) / seconds > 0.97
    gains = []
    for _ in range(8):
        specs, expected = turn(seeded, plain, layer, 0.95, 8)
        clock.seconds = 0.0
        assert_same_tokens(specs, expected, answer(engine, specs))
        gains.append(gain_of(clock, 8))
    assert gains[-1] > 1.3, gains


def test_steps_that_have_become_dear_end_drafts(seeded: random.Random, clock: Clock) -> None:
    layer = Layer(0.7, seeded)
    engine, plain = engine_of(layer), plain_engine()
    for wide in (1.0, 1.0, 6.0, 6.0, 6.0):
        clock.wide = wide
        specs, expected = turn(seeded, plain, layer, 0.7, 8)
        clock.seconds = 0.0
        assert_same_tokens(specs, expected, answer(engine, specs))
        gain = gain_of(clock, 8)
    assert gain > 0.97
