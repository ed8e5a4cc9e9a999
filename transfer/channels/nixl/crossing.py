"""The places of a segment in the pools of two engines of which at least one has several ranks."""

from collections.abc import Sequence

import numpy as np

from baton.core.errors import ConfigError
from baton.transfer.channels.nixl.agent import Parts
from baton.transfer.errors import ChannelError
from baton.transfer.memory.rank_moves import RankMoves
from baton.transfer.memory.regions import Holder, Memory, Span
from baton.transfer.memory.reshard import Place
from baton.transfer.memory.segments import Kind, Segment

POOLS_A_RANK = 2  # slots and pages


class Crossing:
    """The runs of bytes between our ranks and a peer's, in both directions."""

    def __init__(self, memory: Memory, theirs: Sequence[Span]) -> None:
        """theirs: the peer's pools, see `Memory.spans`."""
        self._ours = memory.spans
        self._theirs = tuple(theirs)
        ranks = len(self._ours) // POOLS_A_RANK, len(self._theirs) // POOLS_A_RANK
        self._writes = RankMoves(memory.slots, memory.pages, *ranks)
        self._reads = RankMoves(memory.slots, memory.pages, *reversed(ranks))

    def written(self, segment: Segment, source: Holder, target: Holder) -> tuple[Parts, Parts]:
        """Return the runs of a write, from our `source` to the peer's `target`."""
        return _runs(self._writes, segment, (self._ours, source), (self._theirs, target))

    def fetched(self, segment: Segment, into: Holder, source: Holder) -> tuple[Parts, Parts]:
        """Return the runs of a read, in our `into` and in the peer's `source`."""
        sides = (self._theirs, source), (self._ours, into)
        theirs, ours = _runs(self._reads, segment, *sides)
        return ours, theirs

    def written_bytes(self, segment: Segment) -> int:
        """Return the bytes of a write: what several of the peer's ranks keep counts for each."""
        return self._writes.nbytes(segment)


def check_pools(memory: Memory, theirs: Sequence[Span], peer: str) -> None:
    """Raise ChannelError unless `theirs` are the pools of a peer that has the same layouts, on any
    number of ranks.
    """
    ranks = len(theirs) // POOLS_A_RANK
    try:
        parts = [
            (memory.slots.shard(rank, ranks), memory.pages.shard(rank, ranks))
            for rank in range(ranks)
        ]
    except ConfigError as error:
        raise ChannelError(f"{peer} divides its states as this model cannot be: {error}") from error
    expected = [size for s, p in parts for size in (s.slot_bytes, p.page_bytes)]
    found = [span.block_bytes for span in theirs]
    if not found or found != expected:
        raise ChannelError(
            f"the blocks of {peer} have other sizes than those of this worker's model on {ranks} "
            f"rank{'s' * (ranks != 1)}",
            expected=str(expected),
            actual=str(found),
        )


def _runs(
    moves: RankMoves,
    segment: Segment,
    source: tuple[Sequence[Span], Holder],
    target: tuple[Sequence[Span], Holder],
) -> tuple[Parts, Parts]:
    """Return the runs at the source and at the target: [runs, 3] uint64 each."""
    found: tuple[list[Parts], list[Parts]] = [], []
    for move in moves.of(segment):
        places = move.source, move.destination
        rows, nbytes = move.rows, move.nbytes
        if all(place.stride == nbytes for place in places):  # they touch on both sides
            rows, nbytes = 1, rows * nbytes
        sides = zip((source, target), places, found, strict=True)
        for (spans, holder), place, runs in sides:
            span, start = _start(segment, spans, holder, place, move.block)
            part = np.empty((rows, 3), np.uint64)
            part[:, 0] = start + np.arange(rows) * place.stride
            part[:, 1] = nbytes
            part[:, 2] = span.device or 0
            runs.append(part)
    return np.concatenate(found[0]), np.concatenate(found[1])


def _start(
    segment: Segment, spans: Sequence[Span], holder: Holder, place: Place, block: int
) -> tuple[Span, int]:
    """Return a rank's pool, and the address of a place in one of the request's blocks."""
    of_kv = segment.kind is Kind.KV
    span = spans[POOLS_A_RANK * place.rank + of_kv]
    number = holder.pages[block] if of_kv else holder.slot
    return span, span.address + number * span.block_bytes + place.offset
