"""One step of the leader's model on its way to the other ranks."""

from dataclasses import dataclass

import torch
from torch import Tensor

from baton.engine.collectives.comm import RankComm
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
)


@dataclass(frozen=True)
class StepMessage:
    """A step. It says nothing of requests: what to compute, and where in the pools.

    numbers: the batch's tensors end to end, int64; lengths: of each of them. None: they are
    broadcast among the devices next, and so are the block tables' rows that the step reads.
    window: the tokens of each decoding request where steps verify drafts; see `Window`
    met: how often the leader has met the other ranks before
    places, pages: entries of the block tables that differ from what the ranks were told before, as
    row * width + entry, and their values: int64
    """

    numbers: bytes | None
    lengths: tuple[int, ...]
    places: bytes
    pages: bytes
    decode_rows: int
    host: HostLengths
    snapshots: SnapshotPlan | None
    window: int | None
    met: int

    def batch(
        self, model: Model, block_tables: Tensor, kept: tuple[Tensor, ...], comm: RankComm
    ) -> ForwardBatch:
        """Return the batch on this rank, and bring its block tables up to date.

        block_tables: [rows, width] int32. kept: this rank's; see `Window`
        """
        if self.numbers is None:
            tensors = self._received(block_tables, comm)
        else:
            tensors = self._split(_int64s(self.numbers))
            if self.places:
                places, pages = (_int64s(data) for data in (self.places, self.pages))
                block_tables.view(-1).index_copy_(0, places, pages.int())
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
            window=None if self.window is None else Window(self.window, kept),
        )

    def _received(self, block_tables: Tensor, comm: RankComm) -> dict[str, Tensor]:
        """Take part in the broadcasts of `StepWriter.broadcast`."""
        device = block_tables.device
        numbers = torch.empty(sum(self.lengths), dtype=torch.int64, device=device)
        tensors = self._split(comm.broadcast(numbers))
        rows = tensors["table_rows"]
        tables = block_tables.new_empty(len(rows), block_tables.shape[1])
        block_tables.index_copy_(0, rows, comm.broadcast(tables))
        return tensors

    def _split(self, numbers: Tensor) -> dict[str, Tensor]:
        parts = torch.split(numbers, list(self.lengths))
        return dict(zip(_FIELDS, parts, strict=True))


class StepWriter:
    """Makes the messages, in the order of the steps."""

    def __init__(self, *, on_device: bool) -> None:
        """on_device: the host does not know the batch's tensors, which lie on a device."""
        self._on_device = on_device
        self._told: Tensor | None = None  # the block tables as the other ranks have them

    def message(self, batch: ForwardBatch, met: int) -> StepMessage:
        """Return the message of a batch whose tensors are filled in. met: see `StepMessage`"""
        if self._on_device:
            numbers, places, pages = None, b"", b""
        else:
            numbers = _bytes(_numbers(batch))
            places, pages = map(_bytes, self._changes(batch))
        return StepMessage(
            numbers=numbers,
            lengths=tuple(len(getattr(batch, name)) for name in _FIELDS),
            places=places,
            pages=pages,
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
            comm.broadcast(batch.block_tables.index_select(0, batch.table_rows))

    def _changes(self, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """Return the changed entries of the rows that the step reads, and note them as told."""
        tables = batch.block_tables
        if self._told is None:
            self._told = torch.zeros_like(tables)
        rows = batch.table_rows
        changed = (tables.index_select(0, rows) != self._told.index_select(0, rows)).nonzero()
        places = rows[changed[:, 0]] * tables.shape[1] + changed[:, 1]
        pages = tables.view(-1).index_select(0, places)
        self._told.view(-1).index_copy_(0, places, pages)
        return places, pages.long()


def _numbers(batch: ForwardBatch) -> Tensor:
    return torch.cat([getattr(batch, name).long() for name in _FIELDS])


def _bytes(values: Tensor) -> bytes:
    return values.numpy().tobytes()


def _int64s(data: bytes) -> Tensor:
    if not data:  # which frombuffer refuses
        return torch.empty(0, dtype=torch.int64)
    return torch.frombuffer(bytearray(data), dtype=torch.int64)
