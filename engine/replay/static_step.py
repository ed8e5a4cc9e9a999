"""The inputs of a decode step on fixed memory, for steps that are kept and run again."""

from dataclasses import dataclass

import torch
from torch import Tensor

from baton.engine.step.forward_batch import ForwardBatch, HostLengths, Window


@dataclass(frozen=True)
class StaticStep:
    """fields: [9, rows] int64, of which `batch` has views. Its lengths on the host are made up:
    whoever keeps a step reads those on the device."""

    fields: Tensor
    batch: ForwardBatch

    @staticmethod
    def of(
        rows: int, block_tables: Tensor, has_initial: bool, window: Window | None = None
    ) -> "StaticStep":
        """Make a step of padding rows over the resident `block_tables`. has_initial: of all rows,
        where the host decides by it; false: they are looked at on the device.
        """
        requests = rows // (window.tokens if window is not None else 1)
        device = block_tables.device
        fields = torch.zeros((9, rows), dtype=torch.int64, device=device)
        ids, positions, kv_lens, read, write, table_rows, token_pages, token_offsets, logits = (
            fields
        )
        ones, ends = (1,) * rows, tuple(range(rows + 1))
        batch = ForwardBatch(
            token_ids=ids,
            positions=positions,
            cu_seqlens=torch.arange(rows + 1, device=device),
            kv_lens=kv_lens,
            read_slots=read[:requests],
            write_slots=write[:requests],
            has_initial=torch.ones(requests, dtype=torch.bool, device=device),
            block_tables=block_tables,
            table_rows=table_rows,
            token_pages=token_pages,
            token_offsets=token_offsets,
            logit_tokens=logits,
            decode_rows=rows,
            host=HostLengths(ends, ones, ones, (has_initial,) * rows),
            window=window,
        )
        return StaticStep(fields, batch)

    def refresh(self, batch: ForwardBatch) -> None:
        """Copy a batch in; the rows that it lacks become padding. At most three launches."""
        rows, mine = batch.rows, self.batch
        sources = [
            batch.token_ids,
            batch.positions,
            batch.kv_lens,
            batch.read_slots,
            batch.write_slots,
            batch.table_rows,
            batch.token_pages,
            batch.token_offsets,
            batch.logit_tokens,
        ]
        if rows < mine.rows:
            self.fields.zero_()
        fields = [f[: s.shape[0]] for f, s in zip(self.fields, sources, strict=True)]
        torch._foreach_copy_(fields, sources, non_blocking=True)
        mine.has_initial[: batch.decode_requests].copy_(batch.has_initial)
