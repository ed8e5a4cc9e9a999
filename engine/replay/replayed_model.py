"""Decode steps recorded once a batch size and replayed: no Python between their operations."""

from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from operator import is_

import torch
from torch import Tensor

from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.state_pool import StatePool
from baton.engine.replay.static_draft import StaticDraft
from baton.engine.replay.static_step import StaticStep
from baton.engine.settings.config import ModelConfig
from baton.engine.step.draft_batch import DraftBatch, DraftResult
from baton.engine.step.forward_batch import ForwardBatch, HostLengths
from baton.engine.step.model import Model
from baton.engine.step.recurrent_index import RecurrentIndex
from baton.kernels.base import Kernels
from baton.kernels.chunks import SnapshotPlan
from baton.kernels.host_plan import HostPlan
from baton.kernels.native.recorder import Native, NotRecordableError, Recording
from baton.kernels.verify import Accepted

_KEPT = 32  # recordings; making one costs about what a step does


@dataclass(frozen=True)
class _Recorded:
    """A step of fixed shape on fixed memory: inputs are copied in, logits lie where they lay."""

    inputs: StaticStep
    logits: Tensor
    recording: Recording
    states: StatePool
    pages: PagePool

    def is_on(self, states: StatePool, pages: PagePool, batch: ForwardBatch) -> bool:
        """Return true if the recording reads and writes this memory."""
        mine = self.inputs.batch
        memory = self.states, self.pages, mine.block_tables, *_window_memory(mine)
        given = states, pages, batch.block_tables, *_window_memory(batch)
        return all(map(is_, memory, given))

    def run(self, batch: ForwardBatch) -> Tensor:
        self.inputs.refresh(batch)
        self.recording.run()
        return self.logits


def _window_memory(batch: ForwardBatch) -> tuple[object, object]:
    window = batch.window
    return (None, None) if window is None else (window.kept, window.nodes)


@dataclass(frozen=True)
class _RecordedCommit:
    """The commit of a step of fixed shape. fields: [5, requests] int64, of `Accepted` in order."""

    fields: Tensor
    recording: Recording
    batch: ForwardBatch
    states: StatePool

    def is_on(self, states: StatePool, batch: ForwardBatch) -> bool:
        """Return true if the recording reads and writes this memory."""
        mine, others = self.batch.window, batch.window
        same = mine is not None and others is not None and mine.kept is others.kept
        return same and self.states is states

    def run(self, accepted: Accepted) -> None:
        given = [tensor for tensor in accepted if tensor is not None]
        torch._foreach_copy_(list(self.fields), given)
        self.recording.run()


@dataclass(frozen=True)
class _RecordedDraft:
    """One depth of drafts of fixed shape on fixed memory."""

    inputs: StaticDraft
    result: DraftResult
    recording: Recording
    states: StatePool
    pages: PagePool

    def is_on(self, states: StatePool, pages: PagePool, batch: DraftBatch) -> bool:
        """Return true if the recording reads and writes this memory."""
        memory = self.states, self.pages, self.inputs.batch.block_tables
        return all(map(is_, memory, (states, pages, batch.block_tables)))

    def run(self, batch: DraftBatch) -> DraftResult:
        self.inputs.refresh(batch)
        self.recording.run()
        return self.result


class ReplayedModel:
    """A `Model` on native kernels. A step of decode rows alone is replayed, and so are drafts; any
    other step runs as it is, as do all of a model that does something that cannot be recorded.

    The logits of a replayed step are overwritten by the next, and so is what a draft gives.
    """

    def __init__(self, model: Model, native: Native) -> None:
        self._model = model
        self._native = native
        # By rows, requests, and whether these verify their tokens.
        self._recorded: OrderedDict[tuple[int, int, bool], _Recorded] = OrderedDict()
        self._commits: OrderedDict[tuple[int, int], _RecordedCommit] = OrderedDict()
        # By rows, and whether these are of trees.
        self._drafts: OrderedDict[tuple[int, bool], _RecordedDraft] = OrderedDict()
        self._recordable = True

    @property
    def config(self) -> ModelConfig:
        return self._model.config

    @property
    def kernels(self) -> Kernels:
        return self._model.kernels

    @property
    def weight_bytes(self) -> int:
        return self._model.weight_bytes

    @property
    def needs_cpu_seq_lens(self) -> bool:
        return self._model.needs_cpu_seq_lens

    def plan(
        self, host: HostLengths, decode_rows: int, snapshots: SnapshotPlan | None
    ) -> HostPlan[RecurrentIndex]:
        """Plan one step; see `baton.engine.step.model.Model`."""
        return self._model.plan(host, decode_rows, snapshots)

    def forward(self, batch: ForwardBatch, states: StatePool, pages: PagePool) -> Tensor:
        """Run one step; see `baton.engine.step.model.Model`."""
        recorded = self._find(batch, states, pages) if self._replayable(batch) else None
        if recorded is None:
            return self._model.forward(batch, states, pages)
        return recorded.run(batch)

    def hidden_before(self, states: StatePool, slots: Tensor) -> Tensor:
        """Return the last hidden states of sequences; see `baton.engine.step.model.Model`."""
        return self._model.hidden_before(states, slots)

    def draft(self, batch: DraftBatch, states: StatePool, pages: PagePool) -> DraftResult:
        """Run the MTP layer on one token a row; see `baton.engine.step.model.Model`."""
        if not self._recordable:
            return self._model.draft(batch, states, pages)
        key = batch.token_ids.shape[0], batch.nodes is not None
        found = self._drafts.pop(key, None)
        if found is None or not found.is_on(states, pages, batch):
            found = self._record_draft(batch, states, pages)
        self._drafts[key] = found
        if len(self._drafts) > _KEPT:
            self._drafts.popitem(last=False)
        return found.run(batch)

    def commit(self, batch: ForwardBatch, states: StatePool, accepted: Accepted) -> None:
        """Write the states after accepted tokens; see `baton.engine.step.model.Model`."""
        if not self._recordable or accepted.has_initial is not None:
            self._model.commit(batch, states, accepted)
            return
        key = batch.decode_rows, batch.decode_requests
        found = self._commits.pop(key, None)
        if found is None or not found.is_on(states, batch):
            found = self._record_commit(batch, states)
        self._commits[key] = found
        if len(self._commits) > _KEPT:
            self._commits.popitem(last=False)
        found.run(accepted)

    def _replayable(self, batch: ForwardBatch) -> bool:
        return (
            self._recordable
            and batch.decode_rows == batch.rows == batch.logit_tokens.shape[0]
            and all(batch.host.has_initial)
        )

    def _find(self, batch: ForwardBatch, states: StatePool, pages: PagePool) -> _Recorded | None:
        key = batch.rows, batch.decode_requests, batch.window is not None
        found = self._recorded.pop(key, None)
        if found is None or not found.is_on(states, pages, batch):
            try:
                found = self._record(batch, states, pages)
            except NotRecordableError:
                self._recordable = False
                return None
        self._recorded[key] = found
        if len(self._recorded) > _KEPT:
            self._recorded.popitem(last=False)
        return found

    def _record_commit(self, batch: ForwardBatch, states: StatePool) -> _RecordedCommit:
        fields = torch.zeros((5, batch.decode_requests), dtype=torch.int64)
        reads, writes, counts, track_slots, track_counts = fields
        accepted = Accepted(reads, writes, None, counts, track_slots, track_counts)
        commit = partial(self._model.commit, batch, states, accepted)
        recording, _ = self._native.record(commit)
        return _RecordedCommit(fields, recording, batch, states)

    def _record_draft(
        self, batch: DraftBatch, states: StatePool, pages: PagePool
    ) -> _RecordedDraft:
        rows, trees = batch.token_ids.shape[0], batch.nodes is not None
        inputs = StaticDraft.of(rows, batch.block_tables, batch.hidden, trees)
        draft = partial(self._model.draft, inputs.batch, states, pages)
        recording, result = self._native.record(draft)
        return _RecordedDraft(inputs, result, recording, states, pages)

    def _record(self, batch: ForwardBatch, states: StatePool, pages: PagePool) -> _Recorded:
        rows, tables = batch.rows, batch.block_tables
        inputs = StaticStep.of(rows, tables, has_initial=True, window=batch.window)
        forward = partial(self._model.forward, inputs.batch, states, pages)
        recording, logits = self._native.record(forward)
        return _Recorded(inputs, logits, recording, states, pages)
