"""Where the chunks and snapshots of a batch of prompts lie, as GPU kernels read it."""

from dataclasses import dataclass

from torch import Tensor

from baton.kernels.chunks import RaggedRows, SnapshotPlan, pack_ints, plan_chunks
from baton.kernels.triton.conv1d import kept_states


@dataclass(frozen=True)
class PromptChunks:
    """Chunks lie row after row and cover every token. Built once a batch, for all its layers.

    size:       tokens of a chunk, at most
    count:      chunks
    starts:     [count + 1] int64, first packed token of each
    row_chunks: [B + 1] int64, the first chunk of each row
    slots:      [count] int64, the slot that takes the state after each; 0: none
    read_slots, write_slots, has_initial: [B], as in RaggedRows
    """

    size: int
    count: int
    starts: Tensor
    row_chunks: Tensor
    slots: Tensor
    read_slots: Tensor
    write_slots: Tensor
    has_initial: Tensor

    @staticmethod
    def of(rows: RaggedRows, size: int, snapshots: SnapshotPlan | None) -> "PromptChunks":
        """Cut at absolute multiples of `size`; one copy to the device."""
        plan = plan_chunks(rows.cu_seqlens_host, rows.prefix_lens_host, size)
        chunks = sorted(zip(plan.starts, plan.rows, plan.lengths, strict=True))
        _, ends, slots = kept_states(rows, snapshots)
        kept = dict(zip(ends, slots, strict=True))
        after = [start + length for start, _, length in chunks]
        if not kept.keys() <= set(after):
            raise ValueError(
                f"snapshots after packed tokens {sorted(kept.keys() - set(after))} lie on no chunk "
                "boundary; a snapshot lies at an absolute multiple of the chunk size or at its "
                "row's end"
            )
        batch = len(rows.prefix_lens_host)
        starts, row_chunks, after_slots = pack_ints(
            [
                [start for start, _, _ in chunks] + [rows.cu_seqlens_host[-1]],
                [sum(row < r for _, row, _ in chunks) for r in range(batch + 1)],
                [kept.get(end, 0) for end in after],
            ],
            rows.read_slots.device,
        )
        return PromptChunks(
            size=size,
            count=len(chunks),
            starts=starts,
            row_chunks=row_chunks,
            slots=after_slots,
            read_slots=rows.read_slots,
            write_slots=rows.write_slots,
            has_initial=rows.has_initial,
        )
