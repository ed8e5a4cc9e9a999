"""A step on native kernels computes no more places of a window than have drafts, in as many
operations as a plain step."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from engine.engines import greedy, run, tokens_of
from engine.proposers import Known, KnownOnDevice
from engine.test_oracle import load
from oracle.reference import Oracle

from baton.engine.assembly.loader import load_model
from baton.engine.engine import Engine
from baton.engine.replay.replayed_model import ReplayedModel
from baton.engine.request.request import RequestSpec
from baton.engine.settings.choices import WINDOWS, SpeculativeAlgorithm
from baton.engine.speculation.proposer import Proposers
from baton.kernels.native import library
from baton.kernels.native.recorder import Recording

CHECKPOINT = "granite_dense_nope"
TOKENS = 24


@pytest.fixture(scope="module")
def plain(oracle: Oracle) -> Engine:
    if library.load() is None:
        pytest.skip("no C++ compiler")
    return load(oracle.checkpoint(CHECKPOINT))


class AtMost(Known):
    """Guesses no more than `most` tokens."""

    def __init__(self, most: int, *known: object) -> None:
        super().__init__(*known)  # type: ignore[arg-type]
        self._most = most

    def propose(self, serial: int, token_ids: Sequence[int], most: int) -> Sequence[int]:
        return super().propose(serial, token_ids, min(most, self._most))


def answered(engine: Engine, specs: list[RequestSpec]) -> list[list[int]]:
    for spec in specs:
        engine.submit(spec)
    events = run(engine)
    return [tokens_of(events, spec.request_id) for spec in specs]


Asked = tuple[list[RequestSpec], list[list[int]]]


def asked(plain: Engine, rows: int, rng: random.Random) -> Asked:
    """Return requests, and their answers by plain decoding."""
    specs = [
        RequestSpec(f"r{i}", tuple(rng.randrange(3, 90) for _ in range(9)), greedy(TOKENS))
        for i in range(rows)
    ]
    return specs, answered(plain, specs)


def drafting(
    plain: Engine, requests: Asked, guesses: int, right: float, rng: random.Random
) -> Engine:
    """Answer the requests again, with so many drafts a row; return the engine."""
    specs, expected = requests
    known = AtMost(
        guesses,
        [(*spec.prompt_ids, *answer) for spec, answer in zip(specs, expected, strict=True)],
        right,
        plain.plan.model_config.vocab_size,
        rng,
    )
    config = replace(
        plain.config,
        speculative_algorithm=SpeculativeAlgorithm.NGRAM,
        speculative_num_draft_tokens=8,
    )
    proposers = Proposers(known, KnownOnDevice(known))
    engine = Engine(config, load_model(config), None, proposers=proposers)
    assert answered(engine, specs) == expected
    engine.close()
    return engine


class Computed:
    """The steps of decoding rows alone, as the model was given them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.places: list[int] = []  # of each row
        self.operations: list[int] = []  # of each recording that ran

        def forward(model, batch, states, pages):  # type: ignore[no-untyped-def]
            if batch.decode_rows == batch.rows:
                self.places.append(batch.decode_rows // batch.decode_requests)
            return forwards(model, batch, states, pages)

        def ran(recording):  # type: ignore[no-untyped-def]
            self.operations.append(len(recording._operations))
            runs(recording)

        forwards, runs = ReplayedModel.forward, Recording.run
        monkeypatch.setattr(ReplayedModel, "forward", forward)
        monkeypatch.setattr(Recording, "run", ran)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Computed]:
    yield Computed(monkeypatch)


@pytest.mark.parametrize("right", [0.0, 0.8])
@pytest.mark.parametrize("guesses", [0, 1, 2, 5, 7])
def test_a_step_computes_the_shortest_window_that_holds_its_drafts(
    plain: Engine, seeded: random.Random, computed: Computed, guesses: int, right: float
) -> None:
    requests = asked(plain, seeded.choice([1, 3]), seeded)
    computed.places.clear()
    engine = drafting(plain, requests, guesses, right, seeded)
    needed = next(size for size in WINDOWS if size > guesses)
    assert max(computed.places) == needed
    if not right:  # the last tokens of an answer leave room for fewer drafts
        assert computed.places.count(needed) >= TOKENS - 1 - 8
    assert bool(engine.counters.draft_tokens) == bool(guesses)


def test_a_step_and_its_commit_take_as_many_operations_at_any_window_and_batch(
    plain: Engine, seeded: random.Random, computed: Computed
) -> None:
    """Verifying takes those of a plain step; committing takes one, because all recurrent layers are
    of one kind. Where nothing is guessed, there is nothing to commit."""
    answered(plain, [RequestSpec("plain", (5, 6, 7), greedy(TOKENS))])
    step, commit = set(computed.operations), 1
    assert len(step) == 1 and step != {commit} and len(plain.plan.model_config.recurrent) > 1
    for guesses in (0, 1, 3, 7):
        for rows in (1, 3):
            requests = asked(plain, rows, seeded)
            computed.operations.clear()
            drafting(plain, requests, guesses, 1.0, seeded)
            assert set(computed.operations) == (step | {commit} if guesses else step)


@pytest.mark.parametrize("guesses", [0, 1])
def test_steps_that_are_not_recorded_get_the_same_tokens(
    plain: Engine, monkeypatch: pytest.MonkeyPatch, seeded: random.Random, guesses: int
) -> None:
    """Recordings read copies; other steps read the cut columns themselves."""
    requests = asked(plain, 3, seeded)
    monkeypatch.setattr(ReplayedModel, "_replayable", lambda *_: False)
    drafting(plain, requests, guesses, 0.5, seeded)
