"""Drafts by multi-token prediction whose depths are captured by batch size, as on a GPU: answers
are those of plain decoding."""

import random
from dataclasses import replace
from pathlib import Path

import torch
from engine.test_mtp_drafts import (
    GRID,
    answered,
    assert_no_padding_is_read,
    assert_same,
    both_dtypes,
    options,
    poisoned,
    requests,
    right_of,
    with_mtp,
)
from engine.test_oracle import load
from rerun_capture import RerunCapture

from baton.engine.assembly.loader import load_model
from baton.engine.engine import Engine
from baton.engine.layout.batch_sizes import draft_sizes
from baton.engine.replay.graphed_model import GraphedModel
from baton.engine.replay.replayed_model import ReplayedModel
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.engine.settings.config import EngineConfig
from engine import test_mtp_drafts as recorded

folder = recorded.folder


def captured(config: EngineConfig) -> tuple[Engine, GraphedModel, RerunCapture]:
    """An engine whose steps and drafts are captured at its start."""
    model = load_model(config)
    assert isinstance(model, ReplayedModel)
    capture = RerunCapture()
    graphed = GraphedModel(model._model, config.most_running, capture)
    return Engine(config, graphed, None), graphed, capture


@both_dtypes
def test_answers_are_the_bits_of_plain_decoding_and_no_draft_is_captured_later(
    folder: Path, dtype: torch.dtype
) -> None:
    """Three rows run in a captured depth of four."""
    config = replace(options(folder, dtype), max_running=8)
    specs = requests(random.Random("captured"), (1, 16, 170))
    plain = answered(poisoned(config), specs)
    engine, model, capture = captured(with_mtp(config))
    assert tuple(sorted(model._drafts)) == draft_sizes(8)
    before = set(model._drafts.values())
    replays = capture.replays
    assert_same(specs, plain, answered(engine, specs))
    assert set(model._drafts.values()) == before
    assert right_of(engine) > 10
    assert capture.replays > replays + engine.counters.steps


def test_an_engine_that_never_drafts_captures_no_drafts(folder: Path) -> None:
    _, model, _ = captured(with_mtp(options(folder)).for_prompts)
    assert not model._drafts


def test_what_lies_in_the_padding_slot_and_page_reaches_no_request(folder: Path) -> None:
    """NaN in slot 0 and page 0 before each step: with padding rows of captured steps and drafts,
    mixed batches, the ends of chunks, and preempted requests."""
    rng = random.Random("captured padding")
    specs = requests(rng, (1, 3, 40, 60, 75, 90, 130, 20, 33))
    plain = answered(poisoned(options(folder)), specs)
    sized = load(
        folder,
        pages=16,
        mtp=True,
        speculative_algorithm=SpeculativeAlgorithm.MTP,
        chunked_prefill_size=GRID // 2,
        overlap=False,
        canary=True,
    )
    engine, model, _ = captured(sized.config)

    assert_no_padding_is_read(engine, specs, plain)
    assert len(model._drafts) > 1
