"""The inputs of one depth of drafts on fixed memory, for depths that are kept and run again."""

from dataclasses import dataclass

import torch
from torch import Tensor

from baton.engine.step.draft_batch import DraftBatch


@dataclass(frozen=True)
class StaticDraft:
    """fields: [6, rows] int64, of trees [7, rows], of which `batch` has views. Its lengths on the
    host are made up: whoever keeps a depth reads those on the device."""

    fields: Tensor
    batch: DraftBatch

    @staticmethod
    def of(rows: int, block_tables: Tensor, hidden: Tensor, trees: bool = False) -> "StaticDraft":
        """Make a depth of padding rows over the resident `block_tables`. hidden: [any, hidden], of
        whose width and dtype are those that are copied in. trees: rows have links.
        """
        device = block_tables.device
        fields = torch.zeros((6 + trees, rows), dtype=torch.int64, device=device)
        ids, positions, token_pages, token_offsets, kv_lens, table_rows = fields[:6]
        batch = DraftBatch(
            token_ids=ids,
            hidden=torch.zeros((rows, hidden.shape[1]), dtype=hidden.dtype, device=device),
            positions=positions,
            token_pages=token_pages,
            token_offsets=token_offsets,
            kv_lens=kv_lens,
            kv_lens_host=(1,) * rows,
            block_tables=block_tables,
            table_rows=table_rows,
            nodes=fields[6] if trees else None,
        )
        return StaticDraft(fields, batch)

    def refresh(self, batch: DraftBatch) -> None:
        """Copy a batch in; the rows that it lacks become padding. At most three launches."""
        rows = batch.token_ids.shape[0]
        sources = [
            batch.token_ids,
            batch.positions,
            batch.token_pages,
            batch.token_offsets,
            batch.kv_lens,
            batch.table_rows,
            *(() if batch.nodes is None else (batch.nodes,)),
        ]
        if rows < self.fields.shape[1]:
            self.fields.zero_()
        torch._foreach_copy_([f[:rows] for f in self.fields], sources, non_blocking=True)
        own = self.batch.hidden
        if own.data_ptr() != batch.hidden.data_ptr():  # where the depth before has not left it here
            own[:rows].copy_(batch.hidden)
