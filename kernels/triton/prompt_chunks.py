"""The chunks and snapshots of a batch of prompts, in the form that GPU kernels read."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from torch import Tensor

from baton.kernels.chunks import RaggedRows, SnapshotPlan, plan_chunks
from baton.kernels.host_plan import HostPlan
from baton.kernels.triton.conv1d import kept_states


@dataclass(frozen=True)
class PromptChunks:
    """The chunks of a batch, which lie row after row and cover every token; built once for all
    layers.

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


def prompt_chunks(
    cu_seqlens_host: Sequence[int],
    prefix_lens_host: Sequence[int],
    size: int,
    snapshots: SnapshotPlan | None,
) -> HostPlan[Callable[[RaggedRows], PromptChunks]]:
    """Cut the rows of a batch at absolute multiples of `size`."""
    plan = plan_chunks(cu_seqlens_host, prefix_lens_host, size)
    chunks = sorted(zip(plan.starts, plan.rows, plan.lengths, strict=True))
    _, ends, slots = kept_states(cu_seqlens_host, prefix_lens_host, snapshots)
    kept = dict(zip(ends, slots, strict=True))
    after = [start + length for start, _, length in chunks]
    if not kept.keys() <= set(after):
        raise ValueError(
            f"snapshots after packed tokens {sorted(kept.keys() - set(after))} lie on no chunk "
            "boundary; a snapshot lies at an absolute multiple of the chunk size or at its "
            "row's end"
        )
    lists = (
        [start for start, _, _ in chunks] + [cu_seqlens_host[-1]],
        [sum(row < r for _, row, _ in chunks) for r in range(len(cu_seqlens_host))],
        [kept.get(end, 0) for end in after],
    )

    def build(parts: Iterator[Tensor]) -> Callable[[RaggedRows], PromptChunks]:
        starts, row_chunks, after_slots = islice(parts, 3)
        return lambda rows: PromptChunks(
            size=size,
            count=len(chunks),
            starts=starts,
            row_chunks=row_chunks,
            slots=after_slots,
            read_slots=rows.read_slots,
            write_slots=rows.write_slots,
            has_initial=rows.has_initial,
        )

    return HostPlan(lists, build)
