"""KV that a reader takes apart when it has read it from a peer whose ranks keep other heads."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from baton.core.state_ref import StateRef
from baton.transfer.channels.nixl.agent import Parts
from baton.transfer.channels.nixl.runs import (
    MOST_PLANNED,
    POOLS_A_RANK,
    Side,
    alike,
    bytes_at,
    in_blocks,
    in_rows,
    one_by_one,
    touch,
)
from baton.transfer.channels.nixl.staging import Bytes
from baton.transfer.memory.rank_moves import RankMoves, SegmentMove
from baton.transfer.memory.regions import Span
from baton.transfer.memory.segments import Segment


@dataclass(frozen=True)
class _Copy:
    """One tensor of a source rank's pages, at `at` in the buffer. pages: ours."""

    group: Sequence[SegmentMove]
    pages: Sequence[int]
    at: int


@dataclass(frozen=True)
class StagedRead:
    """The runs of a read, [runs, 3] uint64 each: here, some of them in a buffer, and at the source;
    and the copies that are due when all has been read.
    """

    ours: Parts
    theirs: Parts
    copies: Sequence[_Copy] = ()

    @property
    def nbytes(self) -> int:
        """Bytes on their way: what several of our ranks keep may come once for all."""
        return int(self.ours[:, 1].sum())


class Scattering:
    """Copies KV from a buffer, where it lies in the order of the source's pages, into our ranks'
    pools.
    """

    def __init__(self, moves: RankMoves, spans: Sequence[Span], page_size: int) -> None:
        """spans: our pools, in the host's memory. They must outlive this."""
        self._spans = spans
        self._page_size = page_size
        self._pools = [bytes_at(span) for span in spans]
        self._draining = lru_cache(MOST_PLANNED)(lambda rows: tuple(moves.draining(rows)))

    def staged(self, segment: Segment, into: StateRef, source: Side, buffer: Bytes) -> StagedRead:
        """Return how to read a segment: one run for each tensor of each rank's page at the source,
        where we need all of it and the buffer has room.
        """
        ours: list[Parts] = []
        theirs: list[Parts] = []
        copies: list[_Copy] = []
        spans, holder = source
        used = 0
        for pages, rows in alike(segment, self._page_size):
            here, there = (np.array(side.pages[pages], np.uint64) for side in (into, holder))
            for group in self._draining(rows):
                first = group[0]
                size = first.rows * first.source.stride
                apart = not all(touch(move) for move in group)
                if apart and _whole(group) and used + size * len(here) <= len(buffer):
                    ours.append(one_by_one(buffer, used, size, len(here)))
                    place = replace(first.source, offset=_begin(group))
                    theirs.append(in_blocks(spans, place, there, size))
                    copies.append(_Copy(group, into.pages[pages], used))
                    used += size * len(here)
                    continue
                for move in group:
                    ours.append(in_rows(self._spans, move.destination, here, move))
                    theirs.append(in_rows(spans, move.source, there, move))
        return StagedRead(np.concatenate(ours), np.concatenate(theirs), copies)

    def scatter(self, staged: StagedRead, buffer: Bytes) -> None:
        """Make the copies of a read that has ended."""
        for copy in staged.copies:
            self._copy(copy, buffer)

    def _copy(self, copy: _Copy, buffer: Bytes) -> None:
        stride, rows = copy.group[0].source.stride, copy.group[0].rows
        begin = _begin(copy.group)
        for move in copy.group:
            place, each = move.destination, move.nbytes
            pool = POOLS_A_RANK * place.rank + 1
            span = self._spans[pool]
            into_pages = np.ndarray(
                (span.blocks, rows, each), np.uint8, self._pools[pool],
                place.offset, (span.block_bytes, place.stride, 1),
            )  # fmt: skip
            together = np.ndarray(
                (len(copy.pages), rows, each), np.uint8, buffer,
                copy.at + move.source.offset - begin, (rows * stride, stride, 1),
            )  # fmt: skip
            for number, page in enumerate(copy.pages):
                into_pages[page] = together[number]


def _begin(group: Sequence[SegmentMove]) -> int:
    return min(move.source.offset for move in group)


def _whole(group: Sequence[SegmentMove]) -> bool:
    """Return True if the moves, all of one tensor of a source's page, need all of its rows."""
    needed = {move.source.offset: move.nbytes for move in group}
    return sum(needed.values()) == group[0].source.stride
