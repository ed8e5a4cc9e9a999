"""The inputs of a decode step on fixed memory, for steps that are kept and run again."""

from dataclasses import dataclass

import torch
from torch import Tensor

from baton.engine.forward.forward_batch import ForwardBatch, HostLengths


@dataclass(frozen=True)
class StaticStep:
    """fields: [8, rows] int64, of which `batch` has views. Its lengths on the host are made up:
    whoever keeps a step reads those on the device."""

    fields: Tensor
    batch: ForwardBatch

    @staticmethod
    def of(rows: int, table_width: int, device: torch.device, has_initial: bool) -> "StaticStep":
        """Make a step of padding rows, each with room for `table_width` pages. has_initial: of all
        rows, where the host decides by it; false: they are looked at on the device.
        """
        fields = torch.zeros((8, rows), dtype=torch.int64, device=device)
        ids, positions, kv_lens, read, write, token_pages, token_offsets, logit_tokens = fields
        ones, ends = (1,) * rows, tuple(range(rows + 1))
        batch = ForwardBatch(
            token_ids=ids,
            positions=positions,
            cu_seqlens=torch.arange(rows + 1, device=device),
            kv_lens=kv_lens,
            read_slots=read,
            write_slots=write,
            has_initial=torch.ones(rows, dtype=torch.bool, device=device),
            block_tables=torch.zeros((rows, table_width), dtype=torch.int32, device=device),
            table_rows=torch.arange(rows, device=device),
            token_pages=token_pages,
            token_offsets=token_offsets,
            logit_tokens=logit_tokens,
            decode_rows=rows,
            host=HostLengths(ends, ones, ones, (has_initial,) * rows),
        )
        return StaticStep(fields, batch)

    def refresh(self, batch: ForwardBatch) -> None:
        """Copy a batch in; the rows that it lacks become padding. At most four launches.

        What is left in a row's block table past its own pages is never read: its length is
        refreshed.
        """
        rows, mine = batch.rows, self.batch
        sources = [
            batch.token_ids,
            batch.positions,
            batch.kv_lens,
            batch.read_slots,
            batch.write_slots,
            batch.token_pages,
            batch.token_offsets,
            batch.logit_tokens,
        ]
        if rows < mine.rows:
            self.fields.zero_()
        torch._foreach_copy_([field[:rows] for field in self.fields], sources, non_blocking=True)
        mine.has_initial[:rows].copy_(batch.has_initial)
        mine.block_tables[:rows, : batch.block_tables.shape[1]].copy_(batch.block_tables)
