"""Decode steps captured once a batch size and replayed, as CUDA graphs.

A captured step runs on fixed memory: a batch is copied in, and rows that it lacks are padding rows,
which use slot 0 and page 0. So a few sizes serve every batch, and a replay is a copy and a launch.
Steps that verify several tokens a request are captured by those tokens too, and so is their commit.
Drafts by multi-token prediction are captured by their rows, one depth each.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import is_
from typing import NamedTuple, Protocol
from weakref import WeakSet

import torch
from torch import Tensor

from baton.engine.layout.batch_sizes import draft_sizes, window_sizes
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.state_pool import StatePool
from baton.engine.replay.static_draft import StaticDraft
from baton.engine.replay.static_step import StaticStep
from baton.engine.settings.config import ModelConfig
from baton.engine.step.draft_batch import DraftBatch, DraftResult
from baton.engine.step.forward_batch import ForwardBatch, HostLengths, Window
from baton.engine.step.model import Model
from baton.engine.step.recurrent_index import RecurrentIndex
from baton.kernels.base import Kernels
from baton.kernels.chunks import SnapshotPlan
from baton.kernels.host_plan import HostPlan
from baton.kernels.verify import Accepted


class Capture(Protocol):
    def __call__(self, forward: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """Run `forward`, and keep it: what runs it again, and its result, which that overwrites."""
        ...


class CudaCapture:
    """Captures CUDA graphs, all of which share their memory: no two of them run at once.

    The memory ends with its last graph; torch takes no new one there, so the next begins another.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()

    def __call__(self, forward: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        forward()  # compiles kernels and makes libraries' handles, which a capture must not
        if not self._graphs:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the device meanwhile: transfers do.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            result = forward()
        self._graphs.add(graph)
        graph.replay()  # a capture computes nothing
        return graph.replay, result


@dataclass(frozen=True)
class _Captured:
    inputs: StaticStep
    replay: Callable[[], None]
    logits: Tensor

    def run(self, batch: ForwardBatch) -> Tensor:
        self.inputs.refresh(batch)
        self.replay()
        return self.logits[: batch.rows]


@dataclass(frozen=True)
class _CapturedCommit:
    """fields: [5, requests] int64, of `Accepted` in order but for has_initial."""

    fields: Tensor
    has_initial: Tensor
    replay: Callable[[], None]

    def run(self, accepted: Accepted) -> None:
        """Replay the commit. Rows that `accepted` lacks accept no token."""
        given = [field for field in (*accepted[:2], *accepted[3:]) if field is not None]
        requests = accepted.counts.shape[0]
        self.fields.zero_()
        torch._foreach_copy_([field[:requests] for field in self.fields], given, non_blocking=True)
        if accepted.has_initial is None:
            self.has_initial.fill_(True)
        else:
            self.has_initial[:requests].copy_(accepted.has_initial)
        self.replay()


@dataclass(frozen=True)
class _CapturedDraft:
    """One depth of drafts. It leaves the hidden states where the next depth reads them."""

    inputs: StaticDraft
    replay: Callable[[], None]
    logits: Tensor

    def run(self, batch: DraftBatch) -> DraftResult:
        self.inputs.refresh(batch)
        self.replay()
        rows = batch.token_ids.shape[0]
        return DraftResult(self.logits[:rows], self.inputs.batch.hidden[:rows])


class _Memory(NamedTuple):
    """The memory that captured steps read and write where it lies."""

    states: StatePool
    pages: PagePool
    block_tables: Tensor


class GraphedModel:
    """A `Model` whose steps of decode rows alone are replayed, and drafts; any other step runs as
    it is.

    The logits of a replayed step are overwritten by the next, and so is what a draft gives.
    """

    def __init__(self, model: Model, max_rows: int, capture: Capture) -> None:
        self._model = model
        self._max_rows = max_rows
        self._capture = capture
        # By requests, and tokens of each; 0: a step that verifies nothing.
        self._captured: dict[tuple[int, int], _Captured] = {}
        self._commits: dict[tuple[int, int], _CapturedCommit] = {}
        self._drafts: dict[int, _CapturedDraft] = {}  # by rows
        self._memory: _Memory | None = None
        self._kept: tuple[Tensor, ...] | None = None

    @property
    def config(self) -> ModelConfig:
        return self._model.config

    @property
    def kernels(self) -> Kernels:
        return self._model.kernels

    @property
    def needs_cpu_seq_lens(self) -> bool:
        return self._model.needs_cpu_seq_lens

    @property
    def weight_bytes(self) -> int:
        return self._model.weight_bytes

    def plan(
        self, host: HostLengths, decode_rows: int, snapshots: SnapshotPlan | None
    ) -> HostPlan[RecurrentIndex]:
        """Plan one step; see `baton.engine.step.model.Model`."""
        return self._model.plan(host, decode_rows, snapshots)

    def capture(
        self,
        states: StatePool,
        pages: PagePool,
        block_tables: Tensor,
        windows: Sequence[Window] = (),
    ) -> None:
        """Capture every size, the largest first: the others find its memory free.

        windows: of each number of tokens that steps verify, with their commits. A model with an
        MTP layer drafts for them.
        """
        memory = _Memory(states, pages, block_tables)
        for window in (None, *windows):
            for size in reversed(self._sizes(window)):
                found = self._at(size, window, memory)
                if window is not None:
                    self._commit_at(size, window, found.inputs.batch, states)
        if windows and self.config.mtp:
            none = torch.zeros(1, dtype=torch.int64, device=block_tables.device)
            hidden = self.hidden_before(states, none)
            for size in reversed(draft_sizes(self._max_rows)):
                self._draft_at(size, hidden, memory)

    def forward(self, batch: ForwardBatch, states: StatePool, pages: PagePool) -> Tensor:
        """Run one step; see `baton.engine.step.model.Model`."""
        size = self._size(batch)
        alone = batch.decode_rows == batch.rows == batch.logit_tokens.shape[0]
        if size is None or not alone or batch.progress is not None:
            return self._model.forward(batch, states, pages)
        memory = _Memory(states, pages, batch.block_tables)
        return self._at(size, batch.window, memory).run(batch)

    def hidden_before(self, states: StatePool, slots: Tensor) -> Tensor:
        """Return the last hidden states of sequences; see `baton.engine.step.model.Model`."""
        return self._model.hidden_before(states, slots)

    def draft(self, batch: DraftBatch, states: StatePool, pages: PagePool) -> DraftResult:
        """Run the MTP layer on one token a row; see `baton.engine.step.model.Model`."""
        rows = batch.token_ids.shape[0]
        size = next((size for size in draft_sizes(self._max_rows) if size >= rows), None)
        if size is None or batch.nodes is not None:
            return self._model.draft(batch, states, pages)
        memory = _Memory(states, pages, batch.block_tables)
        return self._draft_at(size, batch.hidden, memory).run(batch)

    def commit(self, batch: ForwardBatch, states: StatePool, accepted: Accepted) -> None:
        """Write the states after accepted tokens; see `baton.engine.step.model.Model`."""
        size, window = self._size(batch), batch.window
        found = None
        if size is not None and window is not None and self._is_on(batch, states):
            found = self._captured.get((size, window.tokens))
        if found is None or window is None or size is None:
            self._model.commit(batch, states, accepted)
            return
        self._commit_at(size, window, found.inputs.batch, states).run(accepted)

    def _sizes(self, window: Window | None) -> tuple[int, ...]:
        return window_sizes(self._max_rows, 1 if window is None else window.tokens)

    def _size(self, batch: ForwardBatch) -> int | None:
        """Return the requests of the captured step that has room for those that decode."""
        sizes = self._sizes(batch.window)
        return next((size for size in sizes if size >= batch.decode_requests), None)

    def _is_on(self, batch: ForwardBatch, states: StatePool) -> bool:
        kept = None if batch.window is None else batch.window.kept
        return self._memory is not None and self._memory.states is states and self._kept is kept

    def _use(self, memory: _Memory) -> None:
        """Drop what was captured on other memory."""
        if self._memory is None or not all(map(is_, self._memory, memory)):
            for held in (self._captured, self._commits, self._drafts):
                held.clear()
            self._memory, self._kept = memory, None

    def _at(self, size: int, window: Window | None, memory: _Memory) -> _Captured:
        self._use(memory)
        if window is not None and self._kept is not window.kept:
            for held in (self._captured, self._commits):
                for key in [key for key in held if key[1]]:
                    del held[key]
            self._kept = window.kept
        key = size, 0 if window is None else window.tokens
        if key not in self._captured:
            # The kernels must read has_initial on the device: it differs between replays.
            inputs = StaticStep.of(
                size * max(1, key[1]), memory.block_tables, has_initial=False, window=window
            )
            states, pages = memory.states, memory.pages
            replay, logits = self._capture(lambda: self._model.forward(inputs.batch, states, pages))
            self._captured[key] = _Captured(inputs, replay, logits)
        return self._captured[key]

    def _commit_at(
        self, size: int, window: Window, batch: ForwardBatch, states: StatePool
    ) -> _CapturedCommit:
        key = size, window.tokens
        if key not in self._commits:
            device = batch.token_ids.device
            fields = torch.zeros((5, size), dtype=torch.int64, device=device)
            has_initial = torch.ones(size, dtype=torch.bool, device=device)
            reads, writes, counts, track_slots, track_counts = fields
            accepted = Accepted(reads, writes, has_initial, counts, track_slots, track_counts)

            def commit() -> Tensor:
                self._model.commit(batch, states, accepted)
                return fields

            replay, _ = self._capture(commit)
            self._commits[key] = _CapturedCommit(fields, has_initial, replay)
        return self._commits[key]

    def _draft_at(self, size: int, hidden: Tensor, memory: _Memory) -> _CapturedDraft:
        """hidden: as of `StaticDraft.of`"""
        self._use(memory)
        if size not in self._drafts:
            inputs = StaticDraft.of(size, memory.block_tables, hidden)

            def draft() -> Tensor:
                found = self._model.draft(inputs.batch, memory.states, memory.pages)
                inputs.batch.hidden.copy_(found.hidden)
                return found.logits

            replay, logits = self._capture(draft)
            self._drafts[size] = _CapturedDraft(inputs, replay, logits)
        return self._drafts[size]
