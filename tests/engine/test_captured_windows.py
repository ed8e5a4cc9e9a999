"""Steps that verify drafts, and their commits, captured by batch size and window: the answers are
those of plain decoding."""

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from engine.engines import greedy, run, tokens_of
from engine.proposers import Known, KnownOnDevice
from engine.test_oracle import load
from engine.test_speculation_families import snapshots
from engine.test_used_window import CHECKPOINT, TOKENS
from oracle.reference import Oracle
from rerun_capture import RerunCapture

from baton.engine.assembly.loader import load_model
from baton.engine.engine import Engine
from baton.engine.layout.batch_sizes import batch_sizes, kept_bytes, window_sizes
from baton.engine.replay.graphed_model import GraphedModel
from baton.engine.replay.replayed_model import ReplayedModel
from baton.engine.request.request import RequestSpec
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.engine.speculation.proposer import Proposers
from baton.kernels.native import library
from baton.kernels.verify import Accepted

GRID = 32  # tokens between snapshots
ROWS = 16  # most requests at a time


@pytest.fixture(scope="module")
def plain(oracle: Oracle) -> Engine:
    if library.load() is None:
        pytest.skip("no C++ compiler")
    return load(oracle.checkpoint(CHECKPOINT), mamba_track_interval=GRID)


@pytest.mark.parametrize("right", [0.0, 0.7, 1.0])
def test_answers_and_snapshots_are_those_of_plain_decoding_and_nothing_is_captured_later(
    plain: Engine, seeded: random.Random, right: float
) -> None:
    """Three rows run in a captured step of four, whose last request is padding. Each gets past a
    snapshot, somewhere in a window."""
    prompts = [[seeded.randrange(3, 90) for _ in range(seeded.randint(10, 30))] for _ in range(3)]
    specs = [
        RequestSpec(f"r{right}.{i}", tuple(prompt), greedy(TOKENS))
        for i, prompt in enumerate(prompts)
    ]
    for spec in specs:
        plain.submit(spec)
    events = run(plain)
    expected = [tokens_of(events, spec.request_id) for spec in specs]
    sequences = [(*spec.prompt_ids, *a) for spec, a in zip(specs, expected, strict=True)]
    known = Known(sequences, right, plain.plan.model_config.vocab_size, seeded)
    config = replace(
        plain.config,
        max_running=ROWS,
        speculative_algorithm=SpeculativeAlgorithm.NGRAM,
        speculative_num_draft_tokens=4,
    )
    model = load_model(config)
    assert isinstance(model, ReplayedModel)
    capture = RerunCapture()
    graphed = GraphedModel(model._model, ROWS, capture)
    engine = Engine(config, graphed, None, proposers=Proposers(known, KnownOnDevice(known)))
    at_start = {(size, tokens) for tokens in (2, 4) for size in window_sizes(16, tokens)}
    assert graphed._commits.keys() == at_start
    assert capture.captures == len(batch_sizes(16)) + 2 * len(at_start)
    before = capture.replays
    for spec in specs:
        engine.submit(spec)
    found = run(engine)
    assert [tokens_of(found, spec.request_id) for spec in specs] == expected
    for spec in specs:
        wanted, got = (snapshots(e, spec, events) for e in (plain, engine))
        assert wanted.keys() == got.keys() == {GRID}
        assert torch.equal(wanted[GRID], got[GRID])
    # The host of this device shortens a window to one token where no row has a draft.
    assert {key for key in graphed._commits if key[1] > 1} == at_start
    assert capture.replays - before >= (TOKENS if not right else TOKENS // 4)
    engine.close()
    assert_fields_keep_their_places(graphed, engine)


@torch.inference_mode()
def assert_fields_keep_their_places(graphed: GraphedModel, engine: Engine) -> None:
    """A replayed commit gets what it is given, then rows that accept nothing. (A running request
    mostly reads the slot that it writes, so its answers do not show which is which.)"""
    seen: list[Accepted] = []
    graphed._model = SimpleNamespace(commit=lambda *given: seen.append(given[2]))  # type: ignore[assignment]
    for (size, tokens), captured in graphed._captured.items():
        if tokens and size > 1:
            fields = torch.arange(1, 1 + 5 * (size - 1)).view(5, size - 1)
            reads, writes, counts, slots, depths = fields
            given = Accepted(reads, writes, counts % 2 == 0, counts, slots, depths)
            graphed.commit(captured.inputs.batch, engine.states, given)
            for field, expected in zip(seen.pop(), given, strict=True):
                assert field is not None and expected is not None
                assert torch.equal(field[:-1], expected)
            assert not seen


def test_captured_windows_have_no_more_rows_than_plain_steps() -> None:
    for most in (1, 3, 8, 256):
        for tokens in (2, 4, 8):
            sizes = window_sizes(most, tokens)
            assert window_sizes(most, tokens) is sizes, "computed anew in each step"
            assert all(size * tokens <= most for size in sizes)
            assert (sizes == ()) == (most < tokens)
    assert kept_bytes(8, 100, (2,), drafts=True) > kept_bytes(8, 100, (2,))
    assert kept_bytes(8, 100, (2, 4)) > kept_bytes(8, 100, (2,)) > kept_bytes(8, 100)
