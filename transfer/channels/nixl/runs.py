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
    moves: RankMoves, segment: Segment, source: Side, target: Side, page_size: int
) -> tuple[Parts, Parts]:
    """Return the runs at the source and at the target, as they lie: [runs, 3] uint64 each.

    Pages that have the same rows have the same moves, so the work is that of one of them.
    """
    found: tuple[list[Parts], list[Parts]] = [], []
    if segment.kind is not Kind.KV:
        for move in moves.of(segment):
            places = move.source, move.destination
            for (spans, holder), place, runs in zip((source, target), places, found, strict=True):
                span = spans[POOLS_A_RANK * place.rank]
                at = span.address + holder.slot * span.block_bytes + place.offset
                runs.append(_parts(np.array([at], np.uint64), move.nbytes, span.device))
        return np.concatenate(found[0]), np.concatenate(found[1])
    for pages, rows in alike(segment, page_size):
        held = [np.array(holder.pages[pages], np.uint64) for _, holder in (source, target)]
        for move in moves.of(rows):
            found[0].append(in_rows(source[0], move.source, held[0], move))
            found[1].append(in_rows(target[0], move.destination, held[1], move))
    return np.concatenate(found[0]), np.concatenate(found[1])


def filled(segment: Segment, state_bytes: int, page_size: int) -> int:
    """Return the number of blocks that a segment fills, but for their padding; 0 where it fills
    any only in part."""
    if segment.kind is not Kind.KV:
        return int(segment.end - segment.start == state_bytes)
    if segment.layers is not None or segment.start % page_size or segment.end % page_size:
        return 0
    return (segment.end - segment.start) // page_size


def whole_blocks(
    segment: Segment, source: Side, target: Side, page_size: int
) -> tuple[Parts, Parts]:
    """Return the runs of a segment between equal numbers of ranks, each rank's blocks whole.
    segment: fills its blocks; see `filled`
    """
    of_kv = segment.kind is Kind.KV
    pages = slice(segment.start // page_size, segment.end // page_size)
    sides: list[Parts] = []
    for spans, holder in (source, target):
        ids = np.array(holder.pages[pages] if of_kv else (holder.slot,), np.uint64)
        pools = [span for span in spans[int(of_kv) :: POOLS_A_RANK] if span.nbytes]
        blocks = [_parts(p.address + ids * p.block_bytes, p.block_bytes, p.device) for p in pools]
        sides.append(np.concatenate(blocks))
    return sides[0], sides[1]


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


def bytes_at(span: Span) -> Bytes:
    """Return a view of a pool in the host's memory: [bytes] uint8."""
    if not span.nbytes:
        return np.empty(0, np.uint8)
    return np.ctypeslib.as_array((ctypes.c_uint8 * span.nbytes).from_address(span.address))
