"""Drafts by multi-token prediction on several ranks, each a process: the answers are those of plain
decoding, and the drafts are those of one rank."""

import os
import random
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine.engines import assert_clean
from engine.test_auto_mtp import auto, by_source
from engine.test_mtp_drafts import (
    GRID,
    Guessed,
    answered,
    assert_same,
    assert_same_guesses,
    assert_same_tokens,
    both_dtypes,
    options,
    poisoned,
    requests,
    right_of,
    taken,
    with_mtp,
)
from engine.test_mtp_trees import Trees, with_trees
from engine.test_ranks import follower_of, until_it_raises
from mtp_models import MtpCheckpoints

from baton.core.drafts import DraftSource
from baton.core.errors import RankError
from baton.engine.assembly import leading_model
from baton.engine.assembly.leading_model import LeadingModel
from baton.engine.collectives.draft_message import DraftMessage, DraftWriter
from baton.engine.engine import Engine
from baton.engine.request.events import Event
from baton.engine.request.request import RequestSpec
from baton.engine.settings.config import EngineConfig
from engine import test_auto_mtp, test_mtp_trees
from engine import test_mtp_drafts as one_rank

FAMILIES = ("qwen3_next_moe", "qwen3_5_tied", "nemotron_moe", "deepseek3_grouped")

guessed = one_rank.guessed
folder = one_rank.folder
random_rows = test_auto_mtp.random_rows
trees = test_mtp_trees.trees


@contextmanager
def on_ranks(config: EngineConfig, ranks: int = 2) -> Iterator[Engine]:
    """An engine whose pools, of every rank, are poisoned."""
    engine = Engine.load(replace(config, tp=ranks))
    assert engine.followers is not None and engine.followers.storages is not None
    for rank in engine.followers.storages.ranks:
        for pool in rank:
            pool.fill_(0xFF)
    try:
        yield engine
    finally:
        engine.close()


def twice(engine: Engine, specs: Sequence[RequestSpec]) -> list[Event]:
    """Answer the requests, then once more behind what is cached of their prompts."""
    again = [replace(spec, request_id=f"{spec.request_id}-again") for spec in specs]
    events = answered(engine, specs) + answered(engine, again)
    assert_clean(engine)
    return events


@both_dtypes
@pytest.mark.parametrize(
    "name", [FAMILIES[0], *(pytest.param(each, marks=pytest.mark.chaos) for each in FAMILIES[1:])]
)
def test_answers_are_the_bits_of_plain_decoding_on_as_many_ranks(
    mtp_checkpoints: MtpCheckpoints, folder: Path, dtype: torch.dtype, name: str
) -> None:
    """Greedy and seeded, with penalties and log probabilities, cold and behind cached prompts."""
    config = replace(options(folder, dtype), model=mtp_checkpoints.folder(name))
    specs = requests(random.Random(name))
    with on_ranks(config) as plain:
        expected = twice(plain, specs)
    with on_ranks(with_mtp(config)) as engine:
        found = twice(engine, specs)
        assert right_of(engine) > 10
        assert engine.counters.state_hit_tokens >= GRID
    assert_same(specs, expected, found)


@pytest.mark.parametrize(
    "name", [FAMILIES[0], *(pytest.param(each, marks=pytest.mark.chaos) for each in FAMILIES[1:])]
)
def test_trees_give_the_bits_of_plain_decoding_on_as_many_ranks(
    mtp_checkpoints: MtpCheckpoints, folder: Path, name: str, trees: Trees
) -> None:
    """The layer's hidden states and entries of each path are the other ranks' own: trees are those
    of one rank, but for near ties."""
    config = replace(options(folder), model=mtp_checkpoints.folder(name))
    drafting = with_trees(config, 3, 8, 3)
    specs = requests(random.Random(name), (1, 16, 65, 130))
    with on_ranks(config) as plain:
        expected = twice(plain, specs)
    with on_ranks(drafting) as engine:
        assert_same(specs, expected, twice(engine, specs))
        assert not engine._runner.rank_findings()
        assert right_of(engine) > 10
    found = dict(trees)
    trees.clear()
    twice(poisoned(drafting), specs)
    common = found.keys() & trees.keys()
    assert len(common) > 20
    assert sum(found[ids] == trees[ids] for ids in common) > 0.9 * len(common)


def test_drafts_are_those_of_one_rank(folder: Path, guessed: Guessed) -> None:
    """Compare those behind chunked prompts, of rows that decode, and behind cached prompts."""
    rng = random.Random("one rank")
    config = replace(with_mtp(options(folder)), chunked_prefill_size=GRID)
    specs = requests(rng, (1, 16, 65, 130))
    alone = Engine.load(config)
    expected = twice(alone, specs)
    cold = taken(guessed)
    assert right_of(alone) > 10
    with on_ranks(config) as engine:
        assert_same_tokens(specs, expected, twice(engine, specs))
        assert right_of(engine) == right_of(alone)
    assert_same_guesses(cold, taken(guessed), len(cold))


@pytest.mark.usefixtures("random_rows")
def test_rows_of_the_layer_and_of_ngrams_share_steps(folder: Path) -> None:
    """Some steps have rows of one kind alone, of both, or of none."""
    specs = requests(random.Random("both"), (1, 16, 65, 130))
    with on_ranks(options(folder)) as plain:
        expected = twice(plain, specs)
    with on_ranks(auto(options(folder))) as engine:
        assert_same(specs, expected, twice(engine, specs))
        counts = by_source(engine)
    assert counts[DraftSource.MTP][1] and counts[DraftSource.NGRAM][0], counts


def test_what_lies_on_devices_is_broadcast(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks on GPUs work so, whose tensors the host does not know; here they go over gloo."""
    specs = requests(random.Random("broadcast"), (3, 70))
    with on_ranks(options(folder)) as plain:
        expected = twice(plain, specs)
    told: list[DraftMessage] = []
    message = DraftWriter.message

    def noted(self: DraftWriter, *given: Any) -> DraftMessage:
        told.append(message(self, *given))
        return told[-1]

    monkeypatch.setattr(DraftWriter, "message", noted)
    monkeypatch.setattr(leading_model, "unread", lambda device: True)
    with on_ranks(with_mtp(options(folder))) as engine:
        assert_same(specs, expected, twice(engine, specs))
        assert right_of(engine) > 10
    assert {each.numbers for each in told} == {None}, "something was read on the host"
    assert 2 * sum(each.first for each in told) < len(told), "no step had three depths"


def before_a_draft(monkeypatch: pytest.MonkeyPatch, engine: Engine, number: signal.Signals) -> None:
    """Send the other rank a signal before the second depth of a step's drafts."""
    draft, depths = LeadingModel.draft, []

    def faulty(self: LeadingModel, *given: Any) -> Any:
        depths.append(given)
        if len(depths) == 5:
            os.kill(follower_of(engine), number)
        return draft(self, *given)

    monkeypatch.setattr(LeadingModel, "draft", faulty)


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (signal.SIGKILL, r"rank 1 is lost: process .* was killed by signal 9"),
        (signal.SIGSTOP, r"waits for the others at most 5 s: TimeoutError"),
    ],
)
def test_a_rank_that_is_lost_between_two_drafts_ends_the_step_with_its_reason(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, reason: str
) -> None:
    config = replace(with_mtp(options(folder)), rank_timeout_s=5.0)
    with on_ranks(config) as engine:
        before_a_draft(monkeypatch, engine, number)
        for spec in requests(random.Random(1), (20, 30)):
            engine.submit(replace(spec, sampling=replace(spec.sampling, max_tokens=60)))
        with pytest.raises(RankError, match=reason):
            until_it_raises(engine)


def test_a_rank_that_writes_drafts_elsewhere_is_found_by_the_audit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = DraftWriter.message

    def mixed_up(self: DraftWriter, batch: Any, *given: Any) -> DraftMessage:
        return message(
            self, replace(batch, token_pages=torch.zeros_like(batch.token_pages)), *given
        )

    monkeypatch.setattr(DraftWriter, "message", mixed_up)
    with on_ranks(with_mtp(options(folder))) as engine:
        with pytest.raises(AssertionError, match="rank 1 has written other pages than rank 0"):
            answered(engine, requests(random.Random(2), (20,)))
