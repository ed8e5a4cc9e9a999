"""The conversion of a Batch into the device tensors of its forward."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from baton.engine.forward.forward_batch import ForwardBatch, HostLengths
from baton.engine.forward.host_pack import DevicePack, HostPack
from baton.engine.forward.layer_progress import LayerProgress
from baton.engine.forward.recurrent_index import RecurrentIndex
from baton.engine.memory.request_tables import RequestTables
from baton.engine.models.base import Model
from baton.engine.schedule.batch import Batch
from baton.engine.schedule.plain_rows import Ints
from baton.kernels.chunks import SnapshotPlan

_ZERO = np.zeros(1, np.int64)


@dataclass(frozen=True)
class PackedForward:
    """The parts of a step that are needed beside the packed copy to bind it."""

    host: HostLengths
    snapshots: SnapshotPlan | None
    index: Callable[[DevicePack], RecurrentIndex]


def pack_forward(batch: Batch, model: Model, pack: HostPack) -> PackedForward:
    """Put the fields of the step's ForwardBatch, and what the model plans, into `pack`."""
    starts, ends, read_slots, write_slots, table_rows = batch.columns
    lengths, decoding = ends - starts, batch.decode_rows
    cu_seqlens = np.concatenate((_ZERO, np.cumsum(lengths)))
    host = HostLengths(
        cu_seqlens=tuple(cu_seqlens.tolist()),
        prefix_lens=tuple(starts.tolist()),
        kv_lens=tuple(ends.tolist()) if model.needs_cpu_seq_lens else (),
        has_initial=tuple((starts > 0).tolist()),
    )
    runs = (np.arange(row.start, row.end) for row in batch.prompts)
    pack.ints("positions", np.concatenate((starts[:decoding], *runs)))
    pack.ints("cu_seqlens", cu_seqlens)
    pack.ints("kv_lens", ends)
    pack.ints("read_slots", read_slots)
    pack.ints("write_slots", write_slots)
    pack.ints("has_initial", starts > 0)
    pack.ints("table_rows", table_rows)
    draws = batch.draws
    if batch.prompts:
        pack.ints("token_rows", np.repeat(table_rows, lengths))
        pack.ints("logit_tokens", _logit_tokens(batch, cu_seqlens))
        pack.ints("draw_rows", draws.table_rows)
        pack.ints("draw_ends", draws.ends)
    else:  # each row has one token, and samples the next
        pack.same("token_rows", "table_rows")
        pack.ints("logit_tokens", cu_seqlens[:-1])
        pack.same("draw_rows", "table_rows")
        pack.same("draw_ends", "kv_lens")
    snapshots = _snapshots(batch)
    index = pack.plan(model.plan(host, batch.decode_rows, snapshots))
    return PackedForward(host, snapshots, index)


def bind_forward(
    batch: Batch,
    forward: PackedForward,
    packed: DevicePack,
    tables: RequestTables,
    page_size: int,
    progress: LayerProgress | None = None,
) -> ForwardBatch:
    """Return the ForwardBatch over the packed copy; most tensors are views of it. The tokens and
    their pages are not known yet: earlier steps may still run.

    progress: the listener that layers notify of what they have written.
    """
    positions = packed.ints("positions")
    return ForwardBatch(
        token_ids=torch.empty_like(positions),
        positions=positions,
        cu_seqlens=packed.ints("cu_seqlens"),
        kv_lens=packed.ints("kv_lens"),
        read_slots=packed.ints("read_slots"),
        write_slots=packed.ints("write_slots"),
        has_initial=packed.ints("has_initial").bool(),
        block_tables=tables.pages,
        table_rows=packed.ints("table_rows"),
        token_pages=torch.empty_like(positions),
        token_offsets=positions % page_size,
        logit_tokens=packed.ints("logit_tokens"),
        decode_rows=batch.decode_rows,
        host=forward.host,
        index=forward.index(packed),
        snapshots=forward.snapshots,
        progress=progress,
    )


def look_up_tokens(
    packed: DevicePack, forward: ForwardBatch, tables: RequestTables, page_size: int
) -> None:
    """Fill in the step's tokens and their pages, which the request tables have by now."""
    rows, positions = packed.ints("token_rows"), forward.positions
    forward.token_ids.copy_(tables.tokens_at(rows, positions))
    forward.token_pages.copy_(tables.pages_at(rows, positions // page_size))


def _snapshots(batch: Batch) -> SnapshotPlan | None:
    """Return the snapshots of the prefill rows, which count from 0."""
    found = [
        (index, tracked.depth, tracked.slot)
        for index, row in enumerate(batch.prompts)
        for tracked in row.tracked
    ]
    if not found:
        return None
    rows, depths, slots = zip(*found, strict=True)
    return SnapshotPlan(rows, depths, slots)


def _logit_tokens(batch: Batch, cu_seqlens: Ints) -> Ints:
    """Return flat token indices: first each draw's, then each scored row's in order of position."""
    wanted = [cu_seqlens[batch.draws.rows + 1] - 1]
    for index, scores in batch.scores:
        first = cu_seqlens[index] + scores.first_logit - batch.columns[0, index]
        wanted.append(np.arange(first, first + scores.logits))
    return np.concatenate(wanted)
