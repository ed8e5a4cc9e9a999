"""Recorded and captured drafts of the MTP layer are what the model computes, bit for bit."""

import random
from collections.abc import Sequence

import pytest
import torch
from mtp_models import MtpCheckpoints, draft, hidden_of
from oracle.mtp import MTP_SPECS
from rerun_capture import RerunCapture
from step_driver import Row, StepDriver
from torch import Tensor

from baton.engine.assembly.loader import load_model
from baton.engine.layout.batch_sizes import draft_sizes
from baton.engine.replay.graphed_model import GraphedModel
from baton.engine.replay.replayed_model import ReplayedModel
from baton.engine.settings.config import EngineConfig
from baton.engine.step.model import Model
from baton.kernels.native.library import load as library

LENGTHS = (2, 17, 31, 40)
SIZES = (3, 1, 4, 2, 3)  # rows of the steps that draft, one after another
DEPTHS = 3
MOST_RUNNING = 8
MARK = 7.0


@pytest.fixture(autouse=True)
def native_library() -> None:
    if library() is None:
        pytest.skip("no C++ compiler")


@pytest.fixture(params=MTP_SPECS)
def model(mtp_checkpoints: MtpCheckpoints, request: pytest.FixtureRequest) -> ReplayedModel:
    loaded = load_model(EngineConfig(model=mtp_checkpoints.folder(request.param), mtp=True))
    assert isinstance(loaded, ReplayedModel)
    return loaded


class Drafting:
    """Rows of a driver that have computed all tokens but their newest."""

    def __init__(self, model: Model, texts: Sequence[Sequence[int]]) -> None:
        self.driver = StepDriver(model)
        self.rows = [self.driver.start(text[:-1]) for text in texts]
        self.newest = [text[-1] for text in texts]
        self.driver.step(prefill=[(row, len(row.tokens)) for row in self.rows])

    def drafts(self, count: int) -> list[Tensor]:
        """Logits and hidden states of each depth, for the first `count` rows."""
        rows, tokens = self.rows[:count], self.newest[:count]
        found, hidden = [], hidden_of(self.driver, rows)
        for depth in range(DEPTHS):
            logits, hidden = draft(self.driver, rows, tokens, depth, hidden)
            tokens = logits.argmax(-1).tolist()
            found += [logits, hidden]
        return found

    def marked(self, rows: Sequence[Row]) -> list[Tensor]:
        """Put `MARK` where the rows' drafts go. Returns the entries there."""
        pages, size, found = self.driver.pages, self.driver.page_size, []
        for pool in (*pages.k[-1:], *pages.v[-1:], *pages.latents[-1:]):
            for row in rows:
                for place in range(row.computed, row.computed + DEPTHS):
                    found.append(pool[row.pages[place // size], place % size])
                    found[-1].fill_(MARK)
        return found

    def owned(self) -> list[Tensor]:
        """Copies of the rows' pages, as far as there are tokens and drafts."""
        size = self.driver.page_size
        return [self.driver.pages.storage[row.pages[: -(-_end(row) // size)]] for row in self.rows]


def _end(row: Row) -> int:
    return row.computed + DEPTHS


def texts_of(model: Model, rng: random.Random) -> list[list[int]]:
    return [[rng.randrange(3, model.config.vocab_size) for _ in range(n)] for n in LENGTHS]


@torch.inference_mode()  # as the runner does it
def test_recorded_drafts_are_the_models_own(model: ReplayedModel, seeded: random.Random) -> None:
    texts = texts_of(model, seeded)
    found = []
    for each in (model, model._model):
        drafting = Drafting(each, texts)
        found.append([part for size in SIZES for part in drafting.drafts(size)])
        found[-1] += drafting.owned()
    assert model._drafts.keys() == {(size, False) for size in SIZES}  # none of trees
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@torch.inference_mode()
def test_recorded_drafts_follow_to_other_memory(
    model: ReplayedModel, seeded: random.Random
) -> None:
    """A recording reads the pools that it was made on."""
    for texts in (texts_of(model, seeded) for _ in range(2)):
        expected = Drafting(model._model, texts).drafts(2)
        for one, other in zip(Drafting(model, texts).drafts(2), expected, strict=True):
            assert torch.equal(one, other)


@torch.inference_mode()
def test_captured_drafts_are_the_models_own(model: ReplayedModel, seeded: random.Random) -> None:
    """Three rows run in a captured depth of four, whose last is padding: it writes to page 0."""
    texts = texts_of(model, seeded)
    capture = RerunCapture()
    captured = GraphedModel(model._model, MOST_RUNNING, capture)
    plain, graphed = Drafting(model._model, texts), Drafting(captured, texts)
    for drafting in (plain, graphed):
        drafting.drafts(len(texts))  # which takes all pages that they need
    driver = graphed.driver
    for size in SIZES:
        expected = plain.drafts(size)
        before, others = driver.unowned(), graphed.marked(graphed.rows[size:])
        for one, other in zip(graphed.drafts(size), expected, strict=True):
            assert torch.equal(one, other)
        for now, then in zip(driver.unowned(), before, strict=True):
            assert torch.equal(now[1:], then[1:]), "a padding row wrote beside 0"
        assert all((entry == MARK).all() for entry in others), "a row of another batch was run"
    assert captured._drafts.keys() == {1, 2, 4} and capture.captures == 3
    for drafting in (graphed, plain):
        drafting.drafts(len(texts))
    for one, other in zip(graphed.owned(), plain.owned(), strict=True):
        assert torch.equal(one, other)


def test_drafts_are_captured_for_as_many_requests_as_the_smallest_window() -> None:
    assert draft_sizes(MOST_RUNNING) == (1, 2, 4)
    assert draft_sizes(1) == ()
