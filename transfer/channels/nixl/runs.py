"""The runs of bytes of a segment's moves between the pools of two engines' ranks."""

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from baton.transfer.channels.nixl.agent import Parts
from baton.transfer.channels.nixl.staging import Bytes
from baton.transfer.memory.rank_moves import RankMoves, SegmentMove
from baton.transfer.memory.regions import Holder, Span
from baton.transfer.memory.reshard import Place
from baton.transfer.memory.segments import Kind, Segment

POOLS_A_RANK = 2  # slots and pages
MOST_PLANNED = 1024  # runs of layers and of a page's rows whose moves are kept

Side = tuple[Sequence[Span], Holder]
"""The pools of all ranks of an engine, and one request's memory there."""


def runs_apart(
    moves: RankMoves, segment: Segment, source: Side, target: Side
) -> tuple[Parts, Parts]:
    """Return the runs at the source and at the target, as they lie: [runs, 3] uint64 each."""
    found: tuple[list[Parts], list[Parts]] = [], []
    for move in moves.of(segment):
        places = move.source, move.destination
        rows, nbytes = move.rows, move.nbytes
        if _touch(move):
            rows, nbytes = 1, rows * nbytes
        for (spans, holder), place, runs in zip((source, target), places, found, strict=True):
            pool, offset = _start(segment, spans, holder, place, move.block)
            at = spans[pool].address + offset + np.arange(rows, dtype=np.uint64) * place.stride
            runs.append(_parts(at, nbytes, spans[pool].device))
    return np.concatenate(found[0]), np.concatenate(found[1])


class Gathering:
    """Copies KV that lies apart in our ranks' pools into a buffer, in the order of the target's."""

    def __init__(self, moves: RankMoves, spans: Sequence[Span], page_size: int) -> None:
        """spans: our pools, in the host's memory. They must outlive this."""
        self._spans = spans
        self._page_size = page_size
        self._pools = [_bytes_at(span) for span in spans]
        self._filling = lru_cache(MOST_PLANNED)(lambda rows: tuple(moves.filling(rows)))

    def runs(
        self, segment: Segment, source: Holder, target: Side, buffer: Bytes
    ) -> tuple[Parts, Parts]:
        """Copy a segment's bytes into `buffer`, and return the runs there and at the target: one
        for each tensor of each rank's page. What is one run on both sides is not copied.

        buffer: as many bytes as the segment has, because what several ranks keep is copied once
        """
        ours: list[Parts] = []
        theirs: list[Parts] = []
        spans, holder = target
        used = 0
        for pages, rows in _alike(segment, self._page_size):
            here, there = (np.array(side.pages[pages], np.uint64) for side in (source, holder))
            copies: dict[tuple[int, ...], int] = {}  # offsets in the buffer, by the parts' places
            for group in self._filling(rows):
                first = group[0]
                size = first.rows * first.destination.stride
                if len(group) == 1 and _touch(first):
                    ours.append(_in_blocks(self._spans, first.source, here, size))
                else:
                    parts = tuple(move.at for move in group)
                    if parts not in copies:
                        copies[parts] = used
                        self._copy(group, source.pages[pages], buffer, used)
                        used += size * len(here)
                    ours.append(_one_by_one(buffer, copies[parts], size, len(here)))
                begin = min(move.destination.offset for move in group)
                place = replace(first.destination, offset=begin)
                theirs.append(_in_blocks(spans, place, there, size))
        return np.concatenate(ours), np.concatenate(theirs)

    def _copy(
        self, group: Sequence[SegmentMove], pages: Sequence[int], buffer: Bytes, at: int
    ) -> None:
        """Copy one tensor of a target rank's pages to `at`, a page after another."""
        stride, rows = group[0].destination.stride, group[0].rows
        assert sum(move.nbytes for move in group) == stride, "a tensor that is not filled"
        begin = min(move.destination.offset for move in group)
        for move in group:
            place, each = move.source, move.nbytes
            pool = POOLS_A_RANK * place.rank + 1
            span = self._spans[pool]
            from_pages = np.ndarray(
                (span.blocks, rows, each), np.uint8, self._pools[pool],
                place.offset, (span.block_bytes, place.stride, 1),
            )  # fmt: skip
            together = np.ndarray(
                (len(pages), rows, each), np.uint8, buffer,
                at + move.destination.offset - begin, (rows * stride, stride, 1),
            )  # fmt: skip
            for number, page in enumerate(pages):
                together[number] = from_pages[page]


def _alike(segment: Segment, size: int) -> Iterator[tuple[slice, Segment]]:
    """Yield runs of the request's pages that have the same rows in a segment of KV, and these rows
    as a segment of the first page."""
    start, end, layers = segment.start, segment.end, segment.layers
    while start < end:
        page, low = divmod(start, size)
        pages = 1 if low or end - start < size else (end - start) // size
        high = min(size, end - page * size)
        yield slice(page, page + pages), Segment(Kind.KV, low, high, layers)
        start = (page + pages - 1) * size + high


def _in_blocks(spans: Sequence[Span], place: Place, pages: NDArray[np.uint64], size: int) -> Parts:
    """Return the runs of `size` bytes at the same place of each of a rank's `pages`."""
    span = spans[POOLS_A_RANK * place.rank + 1]
    return _parts(span.address + place.offset + pages * span.block_bytes, size, span.device)


def _one_by_one(buffer: Bytes, at: int, size: int, count: int) -> Parts:
    return _parts(buffer.ctypes.data + at + np.arange(count, dtype=np.uint64) * size, size, None)


def _parts(addresses: NDArray[np.uint64], size: int, device: int | None) -> Parts:
    part = np.empty((len(addresses), 3), np.uint64)
    part[:, 0] = addresses
    part[:, 1] = size
    part[:, 2] = device or 0
    return part


def _touch(move: SegmentMove) -> bool:
    """Return True if the rows are one run of bytes on both sides."""
    return move.rows == 1 or move.source.stride == move.destination.stride == move.nbytes


def _start(
    segment: Segment, spans: Sequence[Span], holder: Holder, place: Place, block: int
) -> tuple[int, int]:
    """Return a rank's pool, and where in it a place in one of the request's blocks begins."""
    of_kv = segment.kind is Kind.KV
    pool = POOLS_A_RANK * place.rank + of_kv
    number = holder.pages[block] if of_kv else holder.slot
    return pool, number * spans[pool].block_bytes + place.offset


def _bytes_at(span: Span) -> Bytes:
    """Return a view of a pool in the host's memory: [bytes] uint8."""
    if not span.nbytes:
        return np.empty(0, np.uint8)
    return np.ctypeslib.as_array((ctypes.c_uint8 * span.nbytes).from_address(span.address))
