"""The conversion of a Batch into the device tensors of its forward."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, chain, repeat

import torch
from torch import Tensor

from baton.engine.forward.forward_batch import ForwardBatch, HostLengths
from baton.engine.forward.host_pack import DevicePack, HostPack
from baton.engine.forward.layer_progress import LayerProgress
from baton.engine.forward.recurrent_index import RecurrentIndex
from baton.engine.models.base import Model
from baton.engine.schedule.batch import Batch, Row
from baton.kernels.chunks import SnapshotPlan


@dataclass(frozen=True)
class PackedForward:
    """The parts of a step that are needed beside the packed copy to bind it."""

    host: HostLengths
    snapshots: SnapshotPlan | None
    index: Callable[[DevicePack], RecurrentIndex]


def pack_forward(batch: Batch, model: Model, page_size: int, pack: HostPack) -> PackedForward:
    """Put the fields of the step's ForwardBatch, and what the model plans, into `pack`."""
    rows = batch.rows
    kv_lens = tuple(row.end for row in rows)
    host = HostLengths(
        cu_seqlens=(0, *accumulate(len(row.tokens) for row in rows)),
        prefix_lens=tuple(row.start for row in rows),
        kv_lens=kv_lens if model.needs_cpu_seq_lens else (),
        has_initial=tuple(row.start > 0 for row in rows),
    )
    pack.ints("token_ids", chain.from_iterable(row.tokens for row in rows))
    pack.ints("positions", chain.from_iterable(range(row.start, row.end) for row in rows))
    pack.ints("cu_seqlens", host.cu_seqlens)
    pack.ints("kv_lens", kv_lens)
    pack.ints("read_slots", [row.read_slot for row in rows])
    pack.ints("write_slots", [row.write_slot for row in rows])
    pack.ints("has_initial", host.has_initial)
    _pack_pages(batch, page_size, pack)
    pack.ints("logit_tokens", _logit_tokens(batch, host.cu_seqlens))
    pack.ints(
        "relay_slots",
        [row.read_slot if row.relayed else 0 for row in rows[: batch.decode_rows]],
    )
    pack.ints("draw_slots", [rows[index].write_slot for index, _ in batch.draws])
    snapshots = _snapshots(batch)
    index = pack.plan(model.plan(host, batch.decode_rows, snapshots))
    return PackedForward(host, snapshots, index)


def bind_forward(
    batch: Batch,
    forward: PackedForward,
    packed: DevicePack,
    progress: LayerProgress | None = None,
) -> ForwardBatch:
    """Return the ForwardBatch over the packed copy; all tensors but `has_initial` are views.
    Relayed tokens are not known yet.

    progress: the listener that layers notify of what they have written.
    """
    return ForwardBatch(
        token_ids=packed.ints("token_ids"),
        positions=packed.ints("positions"),
        cu_seqlens=packed.ints("cu_seqlens"),
        kv_lens=packed.ints("kv_lens"),
        read_slots=packed.ints("read_slots"),
        write_slots=packed.ints("write_slots"),
        has_initial=packed.ints("has_initial").bool(),
        block_tables=packed.ints("block_tables").view(len(batch.rows), -1).int(),
        table_rows=packed.ints("table_rows"),
        token_pages=packed.ints("token_pages"),
        token_offsets=packed.ints("token_offsets"),
        logit_tokens=packed.ints("logit_tokens"),
        decode_rows=batch.decode_rows,
        host=forward.host,
        index=forward.index(packed),
        snapshots=forward.snapshots,
        progress=progress,
    )


def relay_tokens(batch: Batch, packed: DevicePack, forward: ForwardBatch, relay: Tensor) -> None:
    """Copy the tokens that the previous step sampled into the rows that decode them.

    relay: [slots] int64, the token that each request's last step sampled, at the slot that the step
    wrote.
    """
    if any(row.relayed for row in batch.rows[: batch.decode_rows]):
        slots = packed.ints("relay_slots")
        decoding = forward.token_ids[: batch.decode_rows]
        decoding.copy_(torch.where(slots > 0, relay[slots], decoding))


def _snapshots(batch: Batch) -> SnapshotPlan | None:
    """Return the snapshots of the prefill rows, which count from 0."""
    found = [
        (index, tracked.depth, tracked.slot)
        for index, row in enumerate(batch.rows[batch.decode_rows :])
        for tracked in row.tracked
    ]
    if not found:
        return None
    rows, depths, slots = zip(*found, strict=True)
    return SnapshotPlan(rows, depths, slots)


def _pack_pages(batch: Batch, page_size: int, pack: HostPack) -> None:
    rows = batch.rows
    width = max(len(row.pages) for row in rows)
    padded = (chain(row.pages, repeat(0, width - len(row.pages))) for row in rows)
    pack.ints("block_tables", chain.from_iterable(padded))
    pack.ints("table_rows", range(len(rows)))
    decoding = rows[: batch.decode_rows]
    chunks = rows[batch.decode_rows :]
    pages = [row.pages[row.start // page_size] for row in decoding]
    offsets = [row.start % page_size for row in decoding]
    for row in chunks:
        for page, first, last in _page_runs(row, page_size):
            pages += repeat(page, last - first)
            offsets += range(first, last)
    pack.ints("token_pages", pages)
    pack.ints("token_offsets", offsets)


def _page_runs(row: Row, page_size: int) -> list[tuple[int, int, int]]:
    """Return (page, first offset, end offset) of each page that takes KV of the row's tokens."""
    runs: list[tuple[int, int, int]] = []
    position = row.start
    while position < row.end:
        first = position % page_size
        last = min(page_size, first + row.end - position)
        runs.append((row.pages[position // page_size], first, last))
        position += last - first
    return runs


def _logit_tokens(batch: Batch, cu_seqlens: tuple[int, ...]) -> list[int]:
    """Return flat token indices: first each draw's, then each scored row's in order of position."""
    wanted = [cu_seqlens[index + 1] - 1 for index, _ in batch.draws]
    for index, scores in batch.scores:
        first = cu_seqlens[index] + scores.first_logit - batch.rows[index].start
        wanted += range(first, first + scores.logits)
    return wanted
