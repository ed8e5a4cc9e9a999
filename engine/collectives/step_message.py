"""One step of the leader's model on its way to the other ranks."""

from dataclasses import dataclass

import torch
from torch import Tensor

from baton.engine.collectives.comm import RankComm
from baton.engine.collectives.told_tables import (
    ChangedEntries,
    ToldTables,
    as_bytes,
    broadcast_rows,
    int64s,
    receive_rows,
)
from baton.engine.step.forward_batch import ForwardBatch, HostLengths, Window
from baton.engine.step.model import Model
from baton.kernels.chunks import SnapshotPlan

# The tensors of a ForwardBatch that travel, all int64 but for `has_initial`, which is bool.
_FIELDS = (
    "token_ids",
    "positions",
    "cu_seqlens",
    "kv_lens",
    "read_slots",
    "write_slots",
    "has_initial",
    "table_rows",
    "token_pages",
    "token_offsets",
    "logit_tokens",
    "nodes",  # empty where there are no trees
)


@dataclass(frozen=True)
class StepMessage:
    """A step. It says nothing of requests: what to compute, and where in the pools.

    numbers: the batch's tensors end to end, int64; lengths: of each of them. None: they are
    broadcast among the devices next, and so are the block tables' rows that the step reads.
    window: the tokens of each decoding request where steps verify drafts; see `Window`
    met: how often the leader has met the other ranks before
    """

    numbers: bytes | None
    lengths: tuple[int, ...]
    entries: ChangedEntries
    decode_rows: int
    host: HostLengths
    snapshots: SnapshotPlan | None
    window: int | None
    met: int

    def batch(
        self,
        model: Model,
        block_tables: Tensor,
        kept: tuple[Tensor, ...],
        comm: RankComm,
        nodes: Tensor | None = None,
    ) -> ForwardBatch:
        """Return the batch on this rank, and bring its block tables up to date.

        block_tables: [rows, width] int32. kept, nodes: this rank's memory; see `Window`
        """
        if self.numbers is None:
            tensors = self._received(block_tables, comm)
        else:
            tensors = self._split(int64s(self.numbers))
            self.entries.write(block_tables)
        if nodes is not None:
            nodes[: len(tensors["nodes"])].copy_(tensors["nodes"])
        index = model.plan(self.host, self.decode_rows, self.snapshots)
        return ForwardBatch(
            token_ids=tensors["token_ids"],
            positions=tensors["positions"],
            cu_seqlens=tensors["cu_seqlens"],
            kv_lens=tensors["kv_lens"],
            read_slots=tensors["read_slots"],
            write_slots=tensors["write_slots"],
            has_initial=tensors["has_initial"].bool(),
            table_rows=tensors["table_rows"],
            token_pages=tensors["token_pages"],
            token_offsets=tensors["token_offsets"],
            logit_tokens=tensors["logit_tokens"],
            block_tables=block_tables,
            decode_rows=self.decode_rows,
            host=self.host,
            index=index.on(block_tables.device),
            snapshots=self.snapshots,
            window=None if self.window is None else Window(self.window, kept, nodes),
        )

    def _received(self, block_tables: Tensor, comm: RankComm) -> dict[str, Tensor]:
        """Take part in the broadcasts of `StepWriter.broadcast`."""
        device = block_tables.device
        numbers = torch.empty(sum(self.lengths), dtype=torch.int64, device=device)
        tensors = self._split(comm.broadcast(numbers))
        receive_rows(block_tables, tensors["table_rows"], comm)
        return tensors

    def _split(self, numbers: Tensor) -> dict[str, Tensor]:
        parts = torch.split(numbers, list(self.lengths))
        return dict(zip(_FIELDS, parts, strict=True))


class StepWriter:
    """Makes the messages, in the order of the steps."""

    def __init__(self, told: ToldTables, *, on_device: bool) -> None:
        """told: the block tables as the other ranks have them. on_device: the host does not know
        the batch's tensors, which lie on a device."""
        self._on_device = on_device
        self._told = told

    def message(self, batch: ForwardBatch, met: int) -> StepMessage:
        """Return the message of a batch whose tensors are filled in. met: see `StepMessage`"""
        on_host = not self._on_device
        return StepMessage(
            numbers=as_bytes(_numbers(batch)) if on_host else None,
            lengths=tuple(len(_field(batch, name)) for name in _FIELDS),
            entries=self._told.changes(batch) if on_host else ChangedEntries(),
            decode_rows=batch.decode_rows,
            host=batch.host,
            snapshots=batch.snapshots,
            window=None if batch.window is None else batch.window.tokens,
            met=met,
        )

    def broadcast(self, batch: ForwardBatch, comm: RankComm) -> None:
        """Give the other ranks, after the message, what it lacks."""
        if self._on_device:
            comm.broadcast(_numbers(batch))
            broadcast_rows(batch, comm)


def _numbers(batch: ForwardBatch) -> Tensor:
    return torch.cat([_field(batch, name).long() for name in _FIELDS])


def _field(batch: ForwardBatch, name: str) -> Tensor:
    found: Tensor | None = getattr(batch, name)
    return batch.token_ids[:0] if found is None else found
