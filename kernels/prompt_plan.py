"""Host plans of a prefill for the native library: its rows, chunks and snapshots."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice

from torch import Tensor

from baton.kernels.chunks import SnapshotPlan, plan_chunks
from baton.kernels.host_plan import HostPlan


@dataclass(frozen=True)
class PromptPlan:
    """The rows and snapshots of a batch of B rows and S snapshots; all tensors are int64.

    starts:         [B + 1], first packed token of each row
    row_snapshots:  [B + 1], first snapshot of each row
    snapshot_ends:  [S], the token after each snapshot
    snapshot_slots: [S], the slot that takes it
    """

    rows: int
    starts: Tensor
    row_snapshots: Tensor
    snapshot_ends: Tensor
    snapshot_slots: Tensor


@dataclass(frozen=True)
class ChunkedPromptPlan:
    """A PromptPlan with its chunks, row after row; all tensors are int64.

    chunk:        tokens of a chunk, at most
    row_chunks:   [B + 1], first chunk of each row
    chunk_starts: [chunks + 1], first packed token of each chunk
    chunk_slots:  [chunks], the slot that takes the state after each, or 0
    """

    prompts: PromptPlan
    chunks: int
    chunk: int
    row_chunks: Tensor
    chunk_starts: Tensor
    chunk_slots: Tensor


def plan_prompts(
    starts: Sequence[int], prefixes: Sequence[int], snapshots: SnapshotPlan | None
) -> HostPlan[PromptPlan]:
    """Plan the rows and snapshots of a batch.

    starts: [B + 1], packed token where each row begins
    prefixes: [B], absolute depth of each row's first token
    """
    kept = _snapshots(starts, prefixes, snapshots)
    in_row = [sum(row == r for row, _, _ in kept) for r in range(len(prefixes))]
    lists = (
        starts,
        list(accumulate(in_row, initial=0)),
        [end for _, end, _ in kept],
        [slot for _, _, slot in kept],
    )
    return HostPlan(lists, lambda parts: PromptPlan(len(prefixes), *islice(parts, 4)))


def plan_chunked_prompts(
    starts: Sequence[int],
    prefixes: Sequence[int],
    chunk: int,
    snapshots: SnapshotPlan | None,
) -> HostPlan[ChunkedPromptPlan]:
    """Plan the chunks, which are cut at absolute multiples of `chunk`, where snapshots lie too."""
    prompts = plan_prompts(starts, prefixes, snapshots)
    plan = plan_chunks(starts, prefixes, chunk)
    chunks = sorted(zip(plan.starts, plan.rows, plan.lengths, strict=True))
    in_row = [plan.rows.count(row) for row in range(len(prefixes))]
    slots = {end: slot for _, end, slot in _snapshots(starts, prefixes, snapshots)}
    after = [start + length for start, _, length in chunks]
    if not slots.keys() <= set(after):
        raise ValueError(
            f"snapshots after packed tokens {sorted(slots.keys() - set(after))} lie on no "
            "chunk boundary; a snapshot lies at an absolute multiple of the chunk size or at "
            "its row's end"
        )
    lists = (
        list(accumulate(in_row, initial=0)),
        [start for start, _, _ in chunks] + [starts[-1]],
        [slots.get(end, 0) for end in after],
    )

    def build(parts: Iterator[Tensor]) -> ChunkedPromptPlan:
        return ChunkedPromptPlan(prompts.build(parts), len(chunks), chunk, *islice(parts, 3))

    return HostPlan((*prompts.lists, *lists), build)


def _snapshots(
    starts: Sequence[int], prefixes: Sequence[int], snapshots: SnapshotPlan | None
) -> list[tuple[int, int, int]]:
    """Return row, packed token after it, and slot of each snapshot, row after row."""
    if snapshots is None:
        return []
    extents = snapshots.extents(starts, prefixes)
    rows = zip(snapshots.rows, extents, snapshots.slots, strict=True)
    return sorted((row, starts[row] + extent, slot) for row, extent, slot in rows)
