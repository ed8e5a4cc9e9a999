"""Decode steps recorded once a batch size and replayed: no Python between their operations."""

from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.engine.config import ModelConfig
from baton.engine.forward_batch import ForwardBatch, HostLengths
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.state_pool import StatePool
from baton.engine.models.base import Model
from baton.engine.recurrent_index import RecurrentIndex
from baton.kernels.chunks import SnapshotPlan
from baton.kernels.dispatch import Kernels
from baton.kernels.host_plan import HostPlan
from baton.kernels.native.recorder import Native, NotRecordableError, Recording

_KEPT = 16  # recordings; making one costs about what a step does


@dataclass(frozen=True)
class _Shape:
    """What a recording is made for."""

    rows: int
    table_width: int  # pages a row, rounded up


@dataclass(frozen=True)
class _Recorded:
    """A step of fixed shape on fixed memory: inputs are copied in, logits lie where they lay."""

    inputs: ForwardBatch
    logits: Tensor
    recording: Recording
    states: StatePool
    pages: PagePool

    def run(self, batch: ForwardBatch) -> Tensor:
        mine = self.inputs
        for to, value in (
            (mine.token_ids, batch.token_ids),
            (mine.positions, batch.positions),
            (mine.kv_lens, batch.kv_lens),
            (mine.read_slots, batch.read_slots),
            (mine.write_slots, batch.write_slots),
            (mine.token_pages, batch.token_pages),
            (mine.token_offsets, batch.token_offsets),
            (mine.logit_tokens, batch.logit_tokens),
        ):
            to.copy_(value)
        mine.block_tables[:, : batch.block_tables.shape[1]].copy_(batch.block_tables)
        self.recording.run()
        return self.logits


class ReplayedModel:
    """A `Model` on native kernels. A step of decode rows alone is replayed, any other runs as it
    is; so do all steps of a model that does something that cannot be recorded.

    The logits of a replayed step are overwritten by the next.
    """

    def __init__(self, model: Model, native: Native) -> None:
        self._model = model
        self._native = native
        self._recorded: OrderedDict[_Shape, _Recorded] = OrderedDict()
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
        """See `baton.engine.models.base.Model`."""
        return self._model.plan(host, decode_rows, snapshots)

    def forward(self, batch: ForwardBatch, states: StatePool, pages: PagePool) -> Tensor:
        """One step; see `baton.engine.models.base.Model`."""
        recorded = self._find(batch, states, pages) if self._replayable(batch) else None
        if recorded is None:
            return self._model.forward(batch, states, pages)
        return recorded.run(batch)

    def _replayable(self, batch: ForwardBatch) -> bool:
        return (
            self._recordable
            and batch.decode_rows == batch.rows == batch.logit_tokens.shape[0]
            and all(batch.host.has_initial)
        )

    def _find(self, batch: ForwardBatch, states: StatePool, pages: PagePool) -> _Recorded | None:
        width = 1 << (batch.block_tables.shape[1] - 1).bit_length()
        shape = _Shape(batch.rows, width)
        found = self._recorded.pop(shape, None)
        if found is None or found.states is not states or found.pages is not pages:
            try:
                found = self._record(shape, states, pages)
            except NotRecordableError:
                self._recordable = False
                return None
        self._recorded[shape] = found
        if len(self._recorded) > _KEPT:
            self._recorded.popitem(last=False)
        return found

    def _record(self, shape: _Shape, states: StatePool, pages: PagePool) -> _Recorded:
        inputs = _inputs(shape)
        recording, logits = self._native.record(lambda: self._model.forward(inputs, states, pages))
        return _Recorded(inputs, logits, recording, states, pages)


def _inputs(shape: _Shape) -> ForwardBatch:
    """Memory for the inputs of a step; lengths on the host are not read by native kernels."""
    rows = shape.rows

    def ints(*size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.int64)

    return ForwardBatch(
        token_ids=ints(rows),
        positions=ints(rows),
        cu_seqlens=ints(rows + 1),
        kv_lens=ints(rows),
        read_slots=ints(rows),
        write_slots=ints(rows),
        has_initial=torch.ones(rows, dtype=torch.bool),
        block_tables=ints(rows, shape.table_width),
        token_pages=ints(rows),
        token_offsets=ints(rows),
        logit_tokens=ints(rows),
        decode_rows=rows,
        host=HostLengths(
            cu_seqlens=tuple(range(rows + 1)),
            prefix_lens=(1,) * rows,
            kv_lens=(1,) * rows,
            has_initial=(True,) * rows,
        ),
    )
