"""Decode steps captured once a batch size and replayed, as CUDA graphs.

A captured step runs on fixed memory: a batch is copied in, and rows that it lacks are padding rows,
which use slot 0 and page 0. So a few sizes serve every batch, and a replay is a copy and a launch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from operator import is_
from typing import Protocol

import torch
from torch import Tensor

from baton.engine.config import ModelConfig
from baton.engine.forward.forward_batch import ForwardBatch, HostLengths
from baton.engine.forward.recurrent_index import RecurrentIndex
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.state_pool import StatePool
from baton.engine.models.base import Model
from baton.engine.replay.batch_sizes import batch_sizes
from baton.engine.replay.static_step import StaticStep
from baton.kernels.base import Kernels
from baton.kernels.chunks import SnapshotPlan
from baton.kernels.host_plan import HostPlan
from baton.kernels.verify import Accepted


class Capture(Protocol):
    def __call__(self, forward: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """Run `forward`, and keep it: what runs it again, and its result, which that overwrites."""
        ...


class CudaCapture:
    """Captures CUDA graphs, all of which share their memory: no two of them run at once."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, forward: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        forward()  # compiles kernels and makes libraries' handles, which a capture must not
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the device meanwhile: transfers do.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            result = forward()
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


class GraphedModel:
    """A `Model` whose steps of decode rows alone are replayed; any other runs as it is.

    The logits of a replayed step are overwritten by the next.
    """

    def __init__(self, model: Model, max_rows: int, capture: Capture) -> None:
        self._model = model
        self._sizes = batch_sizes(max_rows)
        self._capture = capture
        self._captured: dict[int, _Captured] = {}
        self._pools: tuple[StatePool, PagePool, Tensor] | None = None

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
        """Plan one step; see `baton.engine.models.base.Model`."""
        return self._model.plan(host, decode_rows, snapshots)

    def capture(self, states: StatePool, pages: PagePool, block_tables: Tensor) -> None:
        """Capture every size, the largest first: the others find its memory free."""
        for size in reversed(self._sizes):
            self._at(size, states, pages, block_tables)

    def forward(self, batch: ForwardBatch, states: StatePool, pages: PagePool) -> Tensor:
        """Run one step; see `baton.engine.models.base.Model`."""
        if not self._replayable(batch):
            return self._model.forward(batch, states, pages)
        size = next(size for size in self._sizes if size >= batch.rows)
        return self._at(size, states, pages, batch.block_tables).run(batch)

    def commit(self, batch: ForwardBatch, states: StatePool, accepted: Accepted) -> None:
        """Write the states after accepted tokens; see `baton.engine.models.base.Model`."""
        self._model.commit(batch, states, accepted)

    def _replayable(self, batch: ForwardBatch) -> bool:
        return (
            batch.decode_rows == batch.rows == batch.logit_tokens.shape[0]
            and batch.rows <= self._sizes[-1]
            and batch.progress is None
            and batch.window is None
        )

    def _at(self, size: int, states: StatePool, pages: PagePool, block_tables: Tensor) -> _Captured:
        known = self._pools
        if known is None or not all(map(is_, known, (states, pages, block_tables))):
            self._captured.clear()
            self._pools = states, pages, block_tables
        if size not in self._captured:
            # The kernels must read has_initial on the device: it differs between replays.
            inputs = StaticStep.of(size, block_tables, has_initial=False)
            replay, logits = self._capture(lambda: self._model.forward(inputs.batch, states, pages))
            self._captured[size] = _Captured(inputs, replay, logits)
        return self._captured[size]
