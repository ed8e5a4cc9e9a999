"""The runs of bytes of a segment's moves between the pools of two engines' ranks."""

import ctypes
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from baton.core.state_ref import StateRef
from baton.transfer.channels.nixl.agent import Parts
from baton.transfer.channels.nixl.staging import Bytes
from baton.transfer.memory.rank_moves import RankMoves, SegmentMove
from baton.transfer.memory.regions import Span
from baton.transfer.memory.reshard import Place
from baton.transfer.memory.segments import Kind, Segment

POOLS_A_RANK = 2  # slots and pages
MOST_PLANNED = 1024  # runs of layers and of a page's rows whose moves are kept

Side = tuple[Sequence[Span], StateRef]
"""The pools of all ranks of an engine, and one request's memory there."""


def runs_apart(
    moves: RankMoves, segment: Segment, source: Side, target: Side
) -> tuple[Parts, Parts]:
    """Return the runs at the source and at the target, as they lie: [runs, 3] uint64 each."""
    found: tuple[list[Parts], list[Parts]] = [], []
    for move in moves.of(segment):
        places = move.source, move.destination
        rows, nbytes = move.rows, move.nbytes
        if touch(move):
            rows, nbytes = 1, rows * nbytes
        for (spans, holder), place, runs in zip((source, target), places, found, strict=True):
            pool, offset = _start(segment, spans, holder, place, move.block)
            at = spans[pool].address + offset + np.arange(rows, dtype=np.uint64) * place.stride
            runs.append(_parts(at, nbytes, spans[pool].device))
    return np.concatenate(found[0]), np.concatenate(found[1])


def alike(segment: Segment, size: int) -> Iterator[tuple[slice, Segment]]:
    """Yield runs of the request's pages that have the same rows in a segment of KV, and these rows
    as a segment of the first page."""
    start, end, layers = segment.start, segment.end, segment.layers
    while start < end:
        page, low = divmod(start, size)
        pages = 1 if low or end - start < size else (end - start) // size
        high = min(size, end - page * size)
        yield slice(page, page + pages), Segment(Kind.KV, low, high, layers)
        start = (page + pages - 1) * size + high


def in_blocks(spans: Sequence[Span], place: Place, pages: NDArray[np.uint64], size: int) -> Parts:
    """Return the runs of `size` bytes at the same place of each of a rank's `pages`."""
    span = spans[POOLS_A_RANK * place.rank + 1]
    return _parts(span.address + place.offset + pages * span.block_bytes, size, span.device)


def in_rows(
    spans: Sequence[Span], place: Place, pages: NDArray[np.uint64], move: SegmentMove
) -> Parts:
    """Return the runs of a move's rows at `place`, one of its two, in each of a rank's `pages`."""
    if touch(move):
        return in_blocks(spans, place, pages, move.rows * move.nbytes)
    rows = np.arange(move.rows, dtype=np.uint64) * place.stride
    span = spans[POOLS_A_RANK * place.rank + 1]
    blocks = span.address + place.offset + pages * span.block_bytes
    return _parts((blocks[:, None] + rows).ravel(), move.nbytes, span.device)


def one_by_one(buffer: Bytes, at: int, size: int, count: int) -> Parts:
    """Return `count` runs of `size` bytes, one behind another in a buffer."""
    return _parts(buffer.ctypes.data + at + np.arange(count, dtype=np.uint64) * size, size, None)


def _parts(addresses: NDArray[np.uint64], size: int, device: int | None) -> Parts:
    part = np.empty((len(addresses), 3), np.uint64)
    part[:, 0] = addresses
    part[:, 1] = size
    part[:, 2] = device or 0
    return part


def touch(move: SegmentMove) -> bool:
    """Return True if the rows are one run of bytes on both sides."""
    return move.rows == 1 or move.source.stride == move.destination.stride == move.nbytes


def _start(
    segment: Segment, spans: Sequence[Span], holder: StateRef, place: Place, block: int
) -> tuple[int, int]:
    """Return a rank's pool, and where in it a place in one of the request's blocks begins."""
    of_kv = segment.kind is Kind.KV
    pool = POOLS_A_RANK * place.rank + of_kv
    number = holder.pages[block] if of_kv else holder.slot
    return pool, number * spans[pool].block_bytes + place.offset


def bytes_at(span: Span) -> Bytes:
    """Return a view of a pool in the host's memory: [bytes] uint8."""
    if not span.nbytes:
        return np.empty(0, np.uint8)
    return np.ctypeslib.as_array((ctypes.c_uint8 * span.nbytes).from_address(span.address))
