"""A model whose captured steps are computed again without a capture, and compared bit by bit."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from baton.engine.layout.batch_sizes import draft_sizes
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.state_pool import StatePool
from baton.engine.replay.graphed_model import Capture, GraphedModel
from baton.engine.step.draft_batch import DraftBatch, DraftResult
from baton.engine.step.forward_batch import ForwardBatch
from baton.engine.step.model import Model
from baton.kernels.verify import Accepted

_POISON = (0xFF, 0x7F)  # NaN in every dtype; huge numbers


DEPTH = 1
"""The `tokens` of a captured depth of drafts by the model's own layer."""


class CheckedStep(NamedTuple):
    """A kind of captured step: requests that it has room for and has, tokens that it verifies of
    each; 0: none."""

    size: int
    requests: int
    tokens: int
    commit: bool


class CheckedModel(GraphedModel):
    """A `GraphedModel` that compares each replayed step with the same step run as it is.

    Both run on the same inputs, padding rows included, so that products have the same shapes. The
    padding slot and page are full of other bytes each time, which no other row may see.
    """

    def __init__(self, model: Model, max_rows: int, capture: Capture) -> None:
        super().__init__(model, max_rows, capture)
        self.watched = False
        self.steps: Counter[CheckedStep] = Counter()
        self.faults: list[str] = []

    def forward(self, batch: ForwardBatch, states: StatePool, pages: PagePool) -> Tensor:
        """Run one step; see `baton.engine.step.model.Model`."""
        size = self._size(batch)
        alone = batch.decode_rows == batch.rows == batch.logit_tokens.shape[0]
        if not self.watched or size is None or not alone or batch.progress is not None:
            return super().forward(batch, states, pages)
        tokens = 0 if batch.window is None else batch.window.tokens
        pools = [states.storage, pages.storage]

        def replayed() -> list[Tensor]:
            return [super(CheckedModel, self).forward(batch, states, pages), *batch.kept]

        def eager() -> list[Tensor]:
            static = self._captured[size, tokens].inputs.batch
            logits = self._model.forward(static, states, pages)
            return [logits[: batch.rows], *batch.kept]

        step = CheckedStep(size, batch.decode_requests, tokens, commit=False)
        return self._compare(step, replayed, eager, pools, batch.kept)[0]

    def commit(self, batch: ForwardBatch, states: StatePool, accepted: Accepted) -> None:
        """Write the states after accepted tokens; see `baton.engine.step.model.Model`."""
        size, window = self._size(batch), batch.window
        captured = None
        if window is not None and size is not None and self._is_on(batch, states):
            captured = self._captured.get((size, window.tokens))
        if not self.watched or captured is None or window is None or size is None:
            super().commit(batch, states, accepted)
            return
        key = size, window.tokens
        static = captured.inputs.batch

        def replayed() -> list[Tensor]:
            super(CheckedModel, self).commit(batch, states, accepted)
            return []

        def eager() -> list[Tensor]:
            found = self._commits[key]
            reads, writes, counts, track_slots, track_counts = found.fields
            same = Accepted(reads, writes, found.has_initial, counts, track_slots, track_counts)
            self._model.commit(static, states, same)
            return []

        step = CheckedStep(size, batch.decode_requests, window.tokens, commit=True)
        self._compare(step, replayed, eager, [states.storage], window.kept)

    def draft(self, batch: DraftBatch, states: StatePool, pages: PagePool) -> DraftResult:
        """Run the MTP layer on one token a row; see `baton.engine.step.model.Model`."""
        rows = batch.token_ids.shape[0]
        size = next((size for size in draft_sizes(self._max_rows) if size >= rows), None)
        if not self.watched or size is None:
            return super().draft(batch, states, pages)
        static = self._drafts[size].inputs
        hidden = static.batch.hidden  # which a replay overwrites

        def replayed() -> list[Tensor]:
            return list(super(CheckedModel, self).draft(batch, states, pages))

        def eager() -> list[Tensor]:
            static.refresh(batch)
            return [found[:rows] for found in self._model.draft(static.batch, states, pages)]

        step = CheckedStep(size, rows, DEPTH, commit=False)
        logits, behind = self._compare(step, replayed, eager, [pages.storage], [hidden])[:2]
        hidden[:rows].copy_(behind)
        return DraftResult(logits, hidden[:rows])

    def _compare(
        self,
        step: CheckedStep,
        replayed: Callable[[], list[Tensor]],
        eager: Callable[[], list[Tensor]],
        pools: Sequence[Tensor],
        inputs: Sequence[Tensor],
    ) -> list[Tensor]:
        """Return what the replayed step computes. pools: [blocks, bytes] that it may write; the
        first block is padding. inputs: kept ones, which a commit may convolve in place, and hidden
        states.
        """
        written = (*pools, *inputs)
        before = [each.clone() for each in written]

        def ran(run: Callable[[], list[Tensor]], poison: int) -> list[Tensor]:
            for each, kept in zip(written, before, strict=True):
                each.copy_(kept)
            for pool in pools:
                pool[0].fill_(poison)
            computed = run()
            return [each.clone() for each in (*computed, *(pool[1:] for pool in pools))]

        ours = ran(replayed, _POISON[0])
        theirs = ran(eager, _POISON[1])
        self.steps[step] += 1
        if not _same(ours, theirs):
            steady = _same(theirs, ran(eager, _POISON[1]))
            self.faults.append(f"{step}" if steady else f"{step}, as it does without a capture")
        return ours


def _same(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> bool:
    """Compare bits: a NaN is equal to itself."""
    pairs = zip(ours, theirs, strict=True)
    return all(torch.equal(one.view(torch.uint8), other.view(torch.uint8)) for one, other in pairs)
