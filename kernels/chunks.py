"""Host plans of a ragged prefill, and their device form: its chunks, rows and snapshots.

A prefill packs the rows of a batch one after another: row `r` is tokens `cu_seqlens[r]` to
`cu_seqlens[r + 1]` of every packed tensor, and token `t` of row `r` has the absolute depth
`prefix_lens[r] + t - cu_seqlens[r]` in its request. Everything here is computed from host lists, so
that no kernel has to read a length back from the device.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from baton.kernels.host_plan import HostPlan

# A chunk is padded to the smallest of these that holds it, so that its matrix shapes depend on its
# own length alone, never on its neighbours: a full chunk is computed alike in every batch.
_MIN_PADDED = 16
# Chunks that share one batched matmul. Bounds the score matrices and keeps them in the cache.
_CHUNKS_PER_TILE = 16


@dataclass(frozen=True)
class RaggedRows:
    """The rows of a prefill, packed one after another.

    cu_seqlens:  [B + 1] int64 on the device, packed token where each row begins; host copy beside
    prefix_lens_host: [B], absolute depth of each row's first token
    read_slots, write_slots: [B] int64, state slots
    has_initial: [B] bool; False starts from zeros, whatever the read slot holds
    """

    cu_seqlens: Tensor
    cu_seqlens_host: tuple[int, ...]
    prefix_lens_host: tuple[int, ...]
    read_slots: Tensor
    write_slots: Tensor
    has_initial: Tensor


@dataclass(frozen=True)
class SnapshotPlan:
    """The recurrent states to keep inside a prefill. Set by the scheduler, one entry a snapshot.

    rows:   row of the batch
    depths: absolute tokens, `prefix_lens[row] < depth <= prefix_lens[row] + row length`
    slots:  destination slot in the state pool, never 0 (the padding slot)
    """

    rows: tuple[int, ...]
    depths: tuple[int, ...]
    slots: tuple[int, ...]

    def __post_init__(self) -> None:
        if not len(self.rows) == len(self.depths) == len(self.slots):
            raise ValueError(
                f"a snapshot needs a row, a depth and a slot; got {len(self.rows)} rows, "
                f"{len(self.depths)} depths and {len(self.slots)} slots"
            )
        if 0 in self.slots:
            raise ValueError("slot 0 is the padding slot; a snapshot needs a slot of its own")

    def extents(
        self, cu_seqlens_host: Sequence[int], prefix_lens_host: Sequence[int]
    ) -> tuple[int, ...]:
        """Return the tokens of this prefill that lie before each snapshot (depth minus prefix)."""
        extents = []
        for row, depth in zip(self.rows, self.depths, strict=True):
            prefix = prefix_lens_host[row]
            extent = depth - prefix
            length = cu_seqlens_host[row + 1] - cu_seqlens_host[row]
            if not 0 < extent <= length:
                raise ValueError(
                    f"row {row} computes depths {prefix + 1} to {prefix + length}; "
                    f"it cannot keep a snapshot of depth {depth}"
                )
            extents.append(extent)
        return tuple(extents)


@dataclass(frozen=True)
class ChunkPlan:
    """The chunks of a ragged batch, cut at absolute multiples of the chunk size.

    Chunks are ordered by their place in their row, then by `row_order`; so the chunks that one
    step of the state passing handles are one run, and their rows are the first of `row_order`.

    rows, starts, lengths: of each chunk: row, first packed token, tokens
    row_order:             rows by falling number of chunks
    widths:                widths[i] rows have an i-th chunk
    """

    rows: tuple[int, ...]
    starts: tuple[int, ...]
    lengths: tuple[int, ...]
    row_order: tuple[int, ...]
    widths: tuple[int, ...]

    def state_after(self, row: int, extent: int) -> int:
        """Return where the state of `row` after `extent` of its tokens lies.

        It is an index into the chunks' entry states followed by the final states in `row_order`.
        Looked up by row, never by a packed position divided by the chunk size: rows need not
        start on a chunk boundary.
        """
        rank = self.row_order.index(row)
        first = 0
        done = 0
        for width in self.widths:
            if rank >= width:
                break
            if done == extent:
                return first + rank
            done += self.lengths[first + rank]
            first += width
        if done != extent:
            raise ValueError(
                f"row {row} has no chunk boundary {extent} tokens after its start; a snapshot lies "
                "at an absolute multiple of the chunk size or at the row's end"
            )
        return len(self.rows) + rank


def plan_chunks(
    cu_seqlens_host: Sequence[int], prefix_lens_host: Sequence[int], chunk_size: int
) -> ChunkPlan:
    """Cut every row at absolute multiples of `chunk_size`; no chunk crosses a row's end.

    The first chunk after a prefix that is not such a multiple is short, so that a resumed prefill
    computes the same chunks as a cold one.
    """
    per_row: list[list[tuple[int, int]]] = []
    for row, prefix in enumerate(prefix_lens_host):
        start, end = cu_seqlens_host[row], cu_seqlens_host[row + 1]
        chunks = []
        while start < end:
            length = min(chunk_size - prefix % chunk_size, end - start)
            chunks.append((start, length))
            start += length
            prefix += length
        per_row.append(chunks)
    row_order = sorted(range(len(per_row)), key=lambda row: -len(per_row[row]))
    widths = []
    ordered: list[tuple[int, int, int]] = []
    for place in range(max((len(chunks) for chunks in per_row), default=0)):
        rows = [row for row in row_order if len(per_row[row]) > place]
        widths.append(len(rows))
        ordered += [(row, *per_row[row][place]) for row in rows]
    return ChunkPlan(
        rows=tuple(row for row, _, _ in ordered),
        starts=tuple(start for _, start, _ in ordered),
        lengths=tuple(length for _, _, length in ordered),
        row_order=tuple(row_order),
        widths=tuple(widths),
    )


@dataclass(frozen=True)
class ChunkTile:
    """Chunks of one padded length that are computed together.

    chunks: [m] int64, chunk ids (into ChunkPlan); host copy beside
    tokens: [m * length] int64, packed tokens; a padded place repeats its chunk's last token
    valid:  [m, length] bool, False where padded
    """

    length: int
    chunks: Tensor
    chunks_host: tuple[int, ...]
    tokens: Tensor
    valid: Tensor


@dataclass(frozen=True)
class ChunkIndex:
    """The device form of a ChunkPlan and its snapshots; built once a batch, shared by its layers.

    plan:             the host's
    tiles:            the chunks, grouped by padded length
    token_places:     [T] int64, place of each packed token in the tiles' outputs laid end to end
    row_order:        [B] int64, rows by falling number of chunks
    snapshot_sources: [S] int64, into entry states followed by final states; host copy beside
    snapshot_slots:   [S] int64, destination slots
    """

    plan: ChunkPlan
    tiles: tuple[ChunkTile, ...]
    token_places: Tensor
    row_order: Tensor
    snapshot_sources: Tensor
    snapshot_sources_host: tuple[int, ...]
    snapshot_slots: Tensor

    @property
    def num_chunks(self) -> int:
        return len(self.plan.rows)

    @property
    def widths(self) -> tuple[int, ...]:
        return self.plan.widths


def chunk_index(
    cu_seqlens_host: Sequence[int],
    prefix_lens_host: Sequence[int],
    chunk_size: int,
    snapshots: SnapshotPlan | None,
) -> HostPlan[ChunkIndex]:
    """Plan the chunks of a batch."""
    plan = plan_chunks(cu_seqlens_host, prefix_lens_host, chunk_size)
    tiles = _tiles(plan, chunk_size)
    token_places = [0] * cu_seqlens_host[-1]
    # Per tile: its chunks, their lengths, their tokens. Then what concerns the whole batch.
    lists: list[Sequence[int]] = []
    place = 0
    for length, chunks in tiles:
        tokens: list[int] = []
        for chunk in chunks:
            start, used = plan.starts[chunk], plan.lengths[chunk]
            token_places[start : start + used] = range(place, place + used)
            tokens.extend(range(start, start + used))
            tokens.extend([start + used - 1] * (length - used))
            place += length
        lists += [chunks, [plan.lengths[chunk] for chunk in chunks], tokens]
    sources, slots = _snapshot_sources(plan, cu_seqlens_host, prefix_lens_host, snapshots)

    def build(parts: Iterator[Tensor]) -> ChunkIndex:
        return ChunkIndex(
            plan=plan,
            tiles=tuple(_tile(length, chunks, parts) for length, chunks in tiles),
            token_places=next(parts),
            row_order=next(parts),
            snapshot_sources=next(parts),
            snapshot_sources_host=tuple(sources),
            snapshot_slots=next(parts),
        )

    return HostPlan((*lists, token_places, plan.row_order, sources, slots), build)


def _tile(length: int, chunks_host: Sequence[int], parts: Iterator[Tensor]) -> ChunkTile:
    chunks, lengths, tokens = islice(parts, 3)
    valid = torch.arange(length, device=lengths.device) < lengths[:, None]
    return ChunkTile(length, chunks, tuple(chunks_host), tokens, valid)


def _tiles(plan: ChunkPlan, chunk_size: int) -> list[tuple[int, list[int]]]:
    """Return padded length and chunk ids of each tile, at most _CHUNKS_PER_TILE of one padded
    length."""
    by_length: dict[int, list[int]] = {}
    for chunk, used in enumerate(plan.lengths):
        by_length.setdefault(_padded(used, chunk_size), []).append(chunk)
    return [
        (length, chunks[first : first + _CHUNKS_PER_TILE])
        for length, chunks in by_length.items()
        for first in range(0, len(chunks), _CHUNKS_PER_TILE)
    ]


def _padded(length: int, chunk_size: int) -> int:
    power = max(_MIN_PADDED, 1 << (length - 1).bit_length())
    return min(power, chunk_size) if length <= chunk_size else length


def _snapshot_sources(
    plan: ChunkPlan,
    cu_seqlens_host: Sequence[int],
    prefix_lens_host: Sequence[int],
    snapshots: SnapshotPlan | None,
) -> tuple[list[int], tuple[int, ...]]:
    if snapshots is None:
        return [], ()
    extents = snapshots.extents(cu_seqlens_host, prefix_lens_host)
    sources = [
        plan.state_after(row, extent) for row, extent in zip(snapshots.rows, extents, strict=True)
    ]
    return sources, snapshots.slots
