"""Drafts verified by several ranks, each a process: the answers are those of plain decoding."""

import os
import random
import signal
import threading
from dataclasses import replace
from typing import Any

import pytest
from engine.engines import assert_clean, greedy, run, tokens_of
from engine.models.test_shards import DIVIDED
from engine.proposers import Known, KnownOnDevice, RandomChoice
from engine.test_ranks import options
from oracle.reference import Oracle
from oracle.specs import SPECS

from baton.core.drafts import DraftSource
from baton.core.grammar import Grammar, GrammarKind
from baton.core.sampling_params import SamplingParams
from baton.engine.assembly.leading_model import LeadingModel
from baton.engine.assembly.loader import load_model
from baton.engine.collectives.step_message import StepMessage, StepWriter
from baton.engine.engine import Engine
from baton.engine.request.events import Event
from baton.engine.request.output import Output
from baton.engine.request.request import RequestSpec
from baton.engine.settings.choices import LEAST_CAPACITY, SpeculativeAlgorithm
from baton.engine.speculation import drafter
from baton.engine.speculation.proposer import Proposers
from baton.engine.step.forward_batch import ForwardBatch

STEPS = 32
LENGTHS = (2, 16, 53)
IN_SUITE = [("granite_moe_nope", 2), ("qwen3_next_moe", 2)]
OTHERS = [each for each in DIVIDED if each not in IN_SUITE]

Tokens = tuple[int, ...]

RULE = Grammar(GrammarKind.REGEX, r"abcabc(ab|cd)deadbeef[0-9]{2,3}-fed")


@pytest.mark.parametrize(
    ("name", "ranks"),
    [*IN_SUITE, *(pytest.param(*each, marks=pytest.mark.chaos) for each in OTHERS)],
)
def test_turns_and_branches_with_drafts_get_the_tokens_of_transformers(
    oracle: Oracle,
    name: str,
    ranks: int,
    seeded: random.Random,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second turns resume from states that were cached in the middle of accepted runs."""
    folder, vocab = oracle.checkpoint(name), SPECS[name].config["vocab_size"]

    def prompt(length: int) -> Tokens:
        return tuple(seeded.randrange(3, vocab) for _ in range(length))

    firsts, more = [prompt(length) for length in LENGTHS], prompt(20)
    plain = Engine.load(replace(options(folder), tp=ranks))
    expected = turns(plain, firsts, more)
    plain.close()
    sequences = [(*asked, *output.token_ids) for asked, output in expected]
    known = Known(sequences, 0.7, vocab, seeded)
    config = replace(
        options(folder),
        tp=ranks,
        speculative_algorithm=SpeculativeAlgorithm.NGRAM,
        speculative_num_draft_tokens=seeded.choice([2, 4, 8]),
    )
    device = seeded.choice([None, KnownOnDevice(known)])
    print(f"tokens={config.speculative_num_draft_tokens} on the device: {device is not None}")
    proposers = Proposers(known, device)
    engine = Engine(config, load_model(config), None, proposers=proposers)
    waits_for_all(engine, monkeypatch)
    try:
        found = turns(engine, firsts, more)
        assert_clean(engine)
        counted = engine.counters
        assert 0 < counted.draft_tokens_accepted < counted.draft_tokens
        assert counted.state_hit_tokens
    finally:
        engine.close()
    prompts = [asked for asked, _ in found]
    oracle.assert_all_greedy(folder, prompts, [o.token_ids for _, o in found], STEPS)
    assert prompts == [asked for asked, _ in expected]


def test_windows_that_change_and_drafts_of_every_proposer_change_no_token(
    oracle: Oracle, seeded: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader chooses each step's window, and guesses: the other ranks run what it sends."""
    paces = random.Random(seeded.random())
    monkeypatch.setattr(drafter, "DraftChoice", lambda most, cuts, _: RandomChoice(most, paces))
    folder = oracle.checkpoint(IN_SUITE[0][0])
    drawn = SamplingParams(temperature=1.0, max_tokens=STEPS, ignore_eos=True)
    samplings = [replace(drawn, seed=seeded.randrange(1 << 60)) for _ in LENGTHS]
    samplings[0] = SamplingParams(temperature=0.0, max_tokens=60, grammar=RULE)
    specs = []
    for length, sampling in zip(LENGTHS, samplings, strict=True):
        prompt = tuple(seeded.randrange(3, 90) for _ in range(length))
        specs.append(RequestSpec(str(length), prompt, sampling, draft_scope=bytes(16)))
    plain = Engine.load(options(folder))
    expected = [tokens_of(answered(plain, specs), spec.request_id) for spec in specs]
    plain.close()
    config = replace(
        options(folder),
        speculative_algorithm=SpeculativeAlgorithm.AUTO,
        speculative_ngram_capacity=LEAST_CAPACITY,
    )
    engine = Engine.load(config)
    windows: set[int | None] = set()
    message = StepWriter.message

    def noted(self: StepWriter, batch: ForwardBatch, met: int) -> StepMessage:
        windows.add(None if batch.window is None else batch.window.tokens)
        return message(self, batch, met)

    monkeypatch.setattr(StepWriter, "message", noted)
    predicted = [replace(s, prediction_ids=tuple(t)) for s, t in zip(specs, expected, strict=True)]
    try:
        for asked in (predicted, specs):  # the second time the store has the answers
            events = answered(engine, asked)
            assert [tokens_of(events, spec.request_id) for spec in asked] == expected
        assert_clean(engine)
        accepted = dict(zip(DraftSource, engine.counters.drafts_accepted, strict=True))
        device = DraftSource.NGRAM, DraftSource.MTP
        assert 0 not in [n for s, n in accepted.items() if s not in device], accepted
        assert len(windows) > 1, "all steps had the same window"
    finally:
        engine.close()


def answered(engine: Engine, specs: list[RequestSpec]) -> list[Event]:
    for spec in specs:
        engine.submit(spec)
    return run(engine)


def turns(engine: Engine, firsts: list[Tokens], more: Tokens) -> list[tuple[Tokens, Output]]:
    """Return each prompt with its answer: the first turns, then the second."""
    answers = engine.generate(firsts, greedy(STEPS))
    seconds = [(*p, *a.token_ids, *more) for p, a in zip(firsts, answers, strict=True)]
    return [
        *zip(firsts, answers, strict=True),
        *zip(seconds, engine.generate(seconds, greedy(STEPS)), strict=True),
    ]


def waits_for_all(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop a rank for the first commit: it must not be over before that rank goes on, because then
    the leader may give the slots to a peer."""
    model, followers = engine._runner._model, engine.followers
    assert isinstance(model, LeadingModel) and followers is not None
    commit, rank = model.commit, followers.processes[-1]
    resumed: list[bool] = []

    def resume() -> None:
        resumed.append(True)
        os.kill(rank, signal.SIGCONT)

    def commit_with_a_stopped_rank(*args: Any) -> None:
        if not resumed:
            os.kill(rank, signal.SIGSTOP)
            later = threading.Timer(0.5, resume)
            later.start()
        commit(*args)
        assert resumed, "the commit did not wait"

    monkeypatch.setattr(model, "commit", commit_with_a_stopped_rank)
