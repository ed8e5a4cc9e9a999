"""The block tables of the other ranks, which the leader keeps up to date with its own."""

from dataclasses import dataclass

import torch
from torch import Tensor

from baton.engine.collectives.comm import RankComm
from baton.engine.step.draft_batch import DraftBatch
from baton.engine.step.forward_batch import ForwardBatch


@dataclass(frozen=True)
class ChangedEntries:
    """Entries of the block tables that differ from what the ranks were told before.

    places: row * width + entry; pages: their values. Both int64
    """

    places: bytes = b""
    pages: bytes = b""

    def write(self, block_tables: Tensor) -> None:
        """Write the entries. block_tables: [rows, width] int32"""
        if self.places:
            places, pages = int64s(self.places), int64s(self.pages)
            block_tables.view(-1).index_copy_(0, places, pages.int())


class ToldTables:
    """The block tables as the other ranks have them."""

    def __init__(self) -> None:
        self._told: Tensor | None = None

    def changes(self, batch: ForwardBatch | DraftBatch) -> ChangedEntries:
        """Return the changed entries of the rows that `batch` reads, and note them as told."""
        tables = batch.block_tables
        if self._told is None:
            self._told = torch.zeros_like(tables)
        rows = batch.table_rows
        changed = (tables.index_select(0, rows) != self._told.index_select(0, rows)).nonzero()
        places = rows[changed[:, 0]] * tables.shape[1] + changed[:, 1]
        pages = tables.view(-1).index_select(0, places)
        self._told.view(-1).index_copy_(0, places, pages)
        return ChangedEntries(as_bytes(places), as_bytes(pages.long()))


def broadcast_rows(batch: ForwardBatch | DraftBatch, comm: RankComm) -> None:
    """Give the other ranks the rows that `batch` reads, among the devices."""
    comm.broadcast(batch.block_tables.index_select(0, batch.table_rows))


def receive_rows(block_tables: Tensor, rows: Tensor, comm: RankComm) -> None:
    """Take part in `broadcast_rows`. rows: [any] int64"""
    tables = block_tables.new_empty(len(rows), block_tables.shape[1])
    block_tables.index_copy_(0, rows, comm.broadcast(tables))


def as_bytes(values: Tensor) -> bytes:
    """Return the bytes of a tensor on the CPU."""
    return values.numpy().tobytes()


def int64s(data: bytes) -> Tensor:
    """Return the int64 tensor whose bytes these are."""
    if not data:  # which frombuffer refuses
        return torch.empty(0, dtype=torch.int64)
    return torch.frombuffer(bytearray(data), dtype=torch.int64)
