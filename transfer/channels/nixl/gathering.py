"""KV that a writer puts together for a peer whose ranks keep other heads."""

from collections.abc import Sequence
from dataclasses import replace
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
    one_by_one,
    touch,
)
from baton.transfer.channels.nixl.staging import Bytes
from baton.transfer.memory.rank_moves import RankMoves, SegmentMove
from baton.transfer.memory.regions import Span
from baton.transfer.memory.segments import Segment


class Gathering:
    """Copies KV that lies apart in our ranks' pools into a buffer, in the order of the target's."""

    def __init__(self, moves: RankMoves, spans: Sequence[Span], page_size: int) -> None:
        """spans: our pools, in the host's memory. They must outlive this."""
        self._spans = spans
        self._page_size = page_size
        self._pools = [bytes_at(span) for span in spans]
        self._filling = lru_cache(MOST_PLANNED)(lambda rows: tuple(moves.filling(rows)))

    def runs(
        self, segment: Segment, source: StateRef, target: Side, buffer: Bytes
    ) -> tuple[Parts, Parts]:
        """Copy a segment's bytes into `buffer`, and return the runs there and at the target: one
        for each tensor of each rank's page. What is one run on both sides is not copied.

        buffer: as many bytes as the segment has, because what several ranks keep is copied once
        """
        ours: list[Parts] = []
        theirs: list[Parts] = []
        spans, holder = target
        used = 0
        for pages, rows in alike(segment, self._page_size):
            here, there = (np.array(side.pages[pages], np.uint64) for side in (source, holder))
            copies: dict[tuple[int, ...], int] = {}  # offsets in the buffer, by the parts' places
            for group in self._filling(rows):
                first = group[0]
                size = first.rows * first.destination.stride
                if len(group) == 1 and touch(first):
                    ours.append(in_blocks(self._spans, first.source, here, size))
                else:
                    parts = tuple(move.at for move in group)
                    if parts not in copies:
                        copies[parts] = used
                        self._copy(group, source.pages[pages], buffer, used)
                        used += size * len(here)
                    ours.append(one_by_one(buffer, copies[parts], size, len(here)))
                begin = min(move.destination.offset for move in group)
                place = replace(first.destination, offset=begin)
                theirs.append(in_blocks(spans, place, there, size))
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
