"""Steps that verify drafts, and their commits, captured by batch size and window: the answers are
those of plain decoding."""

import random
from dataclasses import replace

import pytest
from engine.proposers import Known, KnownOnDevice
from engine.test_used_window import TOKENS, answered, asked
from engine.test_used_window import plain as plain  # a fixture
from rerun_capture import RerunCapture

from baton.engine.choices import SpeculativeAlgorithm
from baton.engine.engine import Engine
from baton.engine.models.loader import load_model
from baton.engine.replay.batch_sizes import batch_sizes, kept_bytes, window_sizes
from baton.engine.replay.graphed_model import GraphedModel
from baton.engine.replay.replayed_model import ReplayedModel
from baton.engine.speculation.proposer import Proposers


@pytest.mark.parametrize("right", [0.0, 0.7, 1.0])
def test_answers_are_those_of_plain_decoding_and_nothing_is_captured_later(
    plain: Engine, seeded: random.Random, right: float
) -> None:
    """Three rows run in a captured step of four, whose last request is padding."""
    specs, expected = asked(plain, 3, seeded)
    sequences = [(*spec.prompt_ids, *a) for spec, a in zip(specs, expected, strict=True)]
    known = Known(sequences, right, plain.model_config.vocab_size, seeded)
    config = replace(
        plain.config,
        max_running=16,
        speculative_algorithm=SpeculativeAlgorithm.NGRAM,
        speculative_num_draft_tokens=4,
    )
    model = load_model(config)
    assert isinstance(model, ReplayedModel)
    capture = RerunCapture()
    graphed = GraphedModel(model._model, config.max_running, capture)
    engine = Engine(config, graphed, None, proposers=Proposers(known, KnownOnDevice(known)))
    at_start = {(size, tokens) for tokens in (2, 4) for size in window_sizes(16, tokens)}
    assert graphed._commits.keys() == at_start
    assert capture.captures == len(batch_sizes(16)) + 2 * len(at_start)
    before = capture.replays
    assert answered(engine, specs) == expected
    # The host of this device shortens a window to one token where no row has a draft.
    assert {key for key in graphed._commits if key[1] > 1} == at_start
    assert capture.replays - before >= (TOKENS if not right else TOKENS // 4)
    engine.close()


def test_captured_windows_have_no_more_rows_than_plain_steps() -> None:
    for most in (1, 3, 8, 256):
        for tokens in (2, 4, 8):
            sizes = window_sizes(most, tokens)
            assert all(size * tokens <= most for size in sizes)
            assert (sizes == ()) == (most < tokens)
    assert kept_bytes(8, 100, (2, 4)) > kept_bytes(8, 100, (2,)) > kept_bytes(8, 100)
