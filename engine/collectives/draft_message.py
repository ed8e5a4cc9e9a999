"""One depth of drafts of the leader's model on its way to the other ranks."""

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
from baton.engine.memory.state_pool import StatePool
from baton.engine.step.draft_batch import DraftBatch
from baton.engine.step.model import Model

# The tensors of a DraftBatch that travel, [B] int64. Before them come, at the first depth, the
# slots of the hidden states that it goes on from: each rank has these, and those of later depths.
_FIELDS = ("token_ids", "positions", "token_pages", "token_offsets", "kv_lens", "table_rows")
_OF_TREES = ("nodes", "parents")  # behind them, where drafts are trees


@dataclass(frozen=True)
class DraftMessage:
    """One depth of drafts, on every rank. B rows.

    rows: B
    first: the first depth of a step. The others read the same rows of the block tables.
    trees: drafts are trees, whose fields travel too
    numbers: the fields end to end, int64; None: they are broadcast among the devices next, and so
        are, at the first depth, the rows of the block tables.
    entries, met: see `StepMessage`
    """

    rows: int
    first: bool
    trees: bool
    numbers: bytes | None
    entries: ChangedEntries
    kv_lens_host: tuple[int, ...]
    met: int

    def batch(
        self,
        model: Model,
        states: StatePool,
        hidden: Tensor | None,
        block_tables: Tensor,
        comm: RankComm,
    ) -> DraftBatch:
        """Return the batch on this rank, and bring its block tables up to date.

        hidden: [B, hidden], what the depth before gave on this rank; not read at the first
        block_tables: [rows, width] int32
        """
        names = _FIELDS + _OF_TREES if self.trees else _FIELDS
        count = len(names) + self.first
        if self.numbers is None:
            device = block_tables.device
            numbers = torch.empty((count, self.rows), dtype=torch.int64, device=device)
            comm.broadcast(numbers)
        else:
            numbers = int64s(self.numbers).view(count, self.rows)
        fields = dict(zip(names, numbers[self.first :], strict=True))
        if self.first:
            hidden = model.hidden_before(states, numbers[0])
            if self.numbers is None:
                receive_rows(block_tables, fields["table_rows"], comm)
        self.entries.write(block_tables)
        assert hidden is not None
        if self.trees and not self.first:
            hidden = hidden.index_select(0, fields["parents"])
        return DraftBatch(
            **fields, hidden=hidden, kv_lens_host=self.kv_lens_host, block_tables=block_tables
        )


class DraftWriter:
    """Makes the messages, in the order of the depths."""

    def __init__(self, told: ToldTables, *, on_device: bool) -> None:
        """told: of the steps' messages too. on_device: see `StepWriter`"""
        self._told = told
        self._on_device = on_device

    def message(self, batch: DraftBatch, slots: Tensor | None, met: int) -> DraftMessage:
        """Return the message of one depth. slots: at the first, those of the hidden states that it
        goes on from. met: see `StepMessage`"""
        on_host = not self._on_device
        return DraftMessage(
            rows=batch.token_ids.shape[0],
            first=slots is not None,
            trees=batch.nodes is not None,
            numbers=as_bytes(_numbers(batch, slots)) if on_host else None,
            entries=self._told.changes(batch)
            if on_host and slots is not None
            else ChangedEntries(),
            kv_lens_host=batch.kv_lens_host,
            met=met,
        )

    def broadcast(self, batch: DraftBatch, slots: Tensor | None, comm: RankComm) -> None:
        """Give the other ranks, after the message, what it lacks."""
        if self._on_device:
            comm.broadcast(_numbers(batch, slots))
            if slots is not None:
                broadcast_rows(batch, comm)


def _numbers(batch: DraftBatch, slots: Tensor | None) -> Tensor:
    first = [] if slots is None else [slots]
    names = _FIELDS if batch.nodes is None else _FIELDS + _OF_TREES
    return torch.stack([each.long() for each in (*first, *(getattr(batch, f) for f in names))])
