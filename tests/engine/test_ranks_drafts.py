"""Drafts verified by several ranks, each a process: the answers are those of plain decoding."""

import os
import random
import signal
import threading
from dataclasses import replace
from typing import Any

import pytest
from engine.engines import assert_clean, greedy
from engine.models.test_shards import DIVIDED
from engine.proposers import Known, KnownOnDevice
from engine.test_ranks import options
from oracle.reference import Oracle
from oracle.specs import SPECS

from baton.engine.choices import SpeculativeAlgorithm
from baton.engine.engine import Engine
from baton.engine.memory import engine_options
from baton.engine.models.loader import load_model
from baton.engine.output.output import Output
from baton.engine.ranks.leading_model import LeadingModel
from baton.engine.speculation.proposer import Proposers

STEPS = 32
LENGTHS = (2, 16, 53)
IN_SUITE = [("granite_moe_nope", 2), ("qwen3_next_moe", 2)]
OTHERS = [each for each in DIVIDED if each not in IN_SUITE]

Tokens = tuple[int, ...]


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
    monkeypatch.setattr(engine_options, "DRAFTING_RANKS", ranks)
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
