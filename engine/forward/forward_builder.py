"""The conversion of a Batch into the device tensors of its forward."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from baton.engine.forward.host_pack import DevicePack, HostPack
from baton.engine.forward.verification import Begun, WindowPlan, begin_window
from baton.engine.memory.request_tables import RequestTables
from baton.engine.speculation.proposer import DeviceProposer, TreeProposer
from baton.engine.step.batch import Batch
from baton.engine.step.forward_batch import ForwardBatch, HostLengths, Window
from baton.engine.step.layer_progress import LayerProgress
from baton.engine.step.model import Model
from baton.engine.step.plain_rows import Ints
from baton.engine.step.recurrent_index import RecurrentIndex
from baton.kernels.base import Kernels
from baton.kernels.chunks import SnapshotPlan

_ZERO = np.zeros(1, np.int64)


@dataclass(frozen=True)
class PackedForward:
    """The parts of a step that are needed beside the packed copy to bind it."""

    host: HostLengths
    snapshots: SnapshotPlan | None
    index: Callable[[DevicePack], RecurrentIndex]


def pack_forward(batch: Batch, model: Model, pack: HostPack) -> PackedForward:
    """Put the fields of the step's ForwardBatch, and what the model plans, into `pack`.

    The positions and lengths of rows that decode are not among them: the request tables have them.
    """
    starts, ends, read_slots, write_slots, table_rows = batch.columns
    pack.ints("read_slots", read_slots)
    pack.ints("write_slots", write_slots)
    pack.ints("has_initial", starts > 0)
    if batch.window > 1:
        starts, ends, table_rows = _window_rows(batch, starts, ends, table_rows)
    lengths, prompts = ends - starts, batch.prompts
    lengths[: batch.decode_rows * batch.window] = 1  # a row with slack has one too, and padding
    cu_seqlens = np.concatenate((_ZERO, np.cumsum(lengths)))
    host = HostLengths(
        cu_seqlens=tuple(cu_seqlens.tolist()),
        prefix_lens=tuple(starts.tolist()),
        kv_lens=tuple(ends.tolist()) if model.needs_cpu_seq_lens else (),
        has_initial=tuple(_started(batch).tolist()),
    )
    pack.ints("cu_seqlens", cu_seqlens)
    pack.ints("table_rows", table_rows)
    decoding = batch.decode_rows * batch.window
    if prompts:
        runs = (np.arange(row.start, row.end) for row in prompts)
        pack.ints("prompt_positions", np.concatenate(tuple(runs)))
        pack.ints("prompt_ends", ends[decoding:])
        pack.ints("token_rows", np.repeat(table_rows, lengths))
        pack.ints("logit_tokens", _logit_tokens(batch, cu_seqlens))
        pack.ints("draw_rows", batch.draws.table_rows)
    elif batch.window > 1:
        pack.same("token_rows", "table_rows")
        pack.ints("logit_tokens", cu_seqlens[:-1])
        pack.ints("draw_rows", batch.draws.table_rows)
    else:  # each row has one token, and samples the next
        pack.same("token_rows", "table_rows")
        pack.ints("logit_tokens", cu_seqlens[:-1])
        pack.same("draw_rows", "table_rows")
    snapshots = _snapshots(batch)
    index = pack.plan(model.plan(host, decoding, snapshots))
    return PackedForward(host, snapshots, index)


def bind_forward(
    batch: Batch,
    forward: PackedForward,
    packed: DevicePack,
    tables: RequestTables,
    progress: LayerProgress | None = None,
    kept: tuple[Tensor, ...] = (),
    nodes: Tensor | None = None,
) -> ForwardBatch:
    """Return the ForwardBatch over the packed copy; many tensors are views of it. The tokens, their
    places and the lengths of rows that decode are not known yet: earlier steps may still run.

    progress: the listener that layers notify of what they have written.
    kept, nodes: where the inputs of verified tokens go, and the links of trees; see `Window`.
    """
    decode_rows = batch.decode_rows * batch.window
    token_rows = packed.ints("token_rows")
    positions, kv_lens = torch.empty_like(token_rows), packed.empty(len(forward.host.prefix_lens))
    if batch.prompts:
        positions[decode_rows:].copy_(packed.ints("prompt_positions"))
        kv_lens[decode_rows:].copy_(packed.ints("prompt_ends"))
    return ForwardBatch(
        token_ids=torch.empty_like(positions),
        positions=positions,
        cu_seqlens=packed.ints("cu_seqlens"),
        kv_lens=kv_lens,
        read_slots=packed.ints("read_slots"),
        write_slots=packed.ints("write_slots"),
        has_initial=packed.ints("has_initial").bool(),
        block_tables=tables.pages,
        table_rows=packed.ints("table_rows"),
        token_pages=torch.empty_like(positions),
        token_offsets=torch.empty_like(positions),
        logit_tokens=packed.ints("logit_tokens"),
        decode_rows=decode_rows,
        host=forward.host,
        index=forward.index(packed),
        snapshots=forward.snapshots,
        progress=progress,
        window=Window(batch.window, kept, nodes) if batch.window > 1 else None,
    )


def same_rows(forward: ForwardBatch, starts: Ints) -> ForwardBatch:
    """Return the ForwardBatch of a step whose rows are those of `forward`, all of which decode, at
    other positions. It shares all tensors with `forward`: `look_up` fills them in, in the order of
    the stream.

    starts: [rows], tokens computed before the step.
    """
    host = forward.host
    prefix_lens = tuple(starts.tolist())
    kv_lens = tuple((starts + 1).tolist()) if host.kv_lens else ()
    return replace(
        forward, host=HostLengths(host.cu_seqlens, prefix_lens, kv_lens, host.has_initial)
    )


def look_up(
    packed: DevicePack,
    forward: ForwardBatch,
    tables: RequestTables,
    page_size: int,
    window: WindowPlan | None,
    proposer: DeviceProposer | TreeProposer | None,
    kernels: Kernels,
) -> tuple[Tensor, Begun | None]:
    """Fill in what the request tables know by now: the positions of rows that decode, the step's
    tokens and their pages. The tables' lengths then count the tokens that the step samples.

    window: what is to be verified, with the drafts that `proposer` guesses and `kernels` draw.
    Returns [draws] int64, the tokens of each sequence before the one that is sampled; and the
    windows. The nodes of a tree lie one after another, whatever their positions are.
    """
    begun = None
    decoding, positions = forward.decode_rows, forward.positions
    places = positions
    draw_rows = packed.ints("draw_rows")
    if window is not None:
        ends = torch.empty_like(draw_rows)
        tables.advance(draw_rows, ends)
        newest = ends[: forward.decode_requests]
        begun = begin_window(window, forward, newest, tables, proposer, kernels)
        seen = begun.seen.flatten()
        forward.kv_lens[:decoding].copy_(seen)
        positions[:decoding].copy_((seen - 1).clamp_(min=0))
        for known in (packed.ints("token_rows"), forward.table_rows):
            known[:decoding].mul_(begun.real.flatten())  # row 0 where it is padding
        if begun.nodes is not None:
            places = positions.clone()
            places[:decoding].copy_(begun.places.flatten())
    elif decoding == forward.rows:
        ends = forward.kv_lens
        tables.advance(draw_rows, ends)
    else:  # the draws of rows that decode come first
        ends = torch.empty_like(draw_rows)
        tables.advance(draw_rows, ends)
        forward.kv_lens[:decoding].copy_(ends[:decoding])
    if window is None:
        torch.sub(ends[:decoding], 1, out=positions[:decoding])
    torch.remainder(places, page_size, out=forward.token_offsets)
    rows = packed.ints("token_rows")
    forward.token_ids.copy_(tables.tokens_at(rows, places))
    forward.token_pages.copy_(tables.pages_at(rows, places // page_size))
    return ends, begun


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
    """Return flat token indices: first each draw's, of all places of a window, then each scored
    row's in order of position.
    """
    more = batch.decode_rows * (batch.window - 1)  # rows of the forward that are no draw's
    decoding = cu_seqlens[1 : 1 + batch.decode_rows + more] - 1
    drawn = batch.draws.rows
    wanted = [decoding, cu_seqlens[drawn[drawn >= batch.decode_rows] + more + 1] - 1]
    for index, scores in batch.scores:
        first = cu_seqlens[index + more] + scores.first_logit - batch.columns[0, index]
        wanted.append(np.arange(first, first + scores.logits))
    return np.concatenate(wanted)


def _window_rows(
    batch: Batch, starts: Ints, ends: Ints, table_rows: Ints
) -> tuple[Ints, Ints, Ints]:
    """Return starts, ends and table rows of the forward's rows: each decoding row once for each of
    its tokens, then the prompts'. Which of them are padding is known on the device.
    """
    count, size = batch.decode_rows, batch.window

    def joined(column: Ints) -> Ints:
        return np.concatenate((np.repeat(column[:count], size), column[count:]))

    return joined(starts), joined(ends), joined(table_rows)


def _started(batch: Batch) -> "npt.NDArray[np.bool_]":
    """Return which rows of the forward have a state to begin from."""
    count, started = batch.decode_rows, batch.columns[0] > 0
    return np.concatenate((np.repeat(started[:count], batch.window), started[count:]))
