"""The places of a segment in the pools of two engines of which at least one has several ranks."""

from collections.abc import Sequence

from baton.core.errors import ConfigError
from baton.core.state_ref import StateRef
from baton.transfer.channels.nixl.agent import Parts
from baton.transfer.channels.nixl.gathering import Gathering
from baton.transfer.channels.nixl.plan import LARGEST_PADDING
from baton.transfer.channels.nixl.runs import (
    POOLS_A_RANK,
    Side,
    alike,
    filled,
    runs_apart,
    whole_blocks,
)
from baton.transfer.channels.nixl.scattering import Scattering, StagedRead
from baton.transfer.channels.nixl.staging import Bytes
from baton.transfer.errors import ChannelError
from baton.transfer.memory.rank_moves import RankMoves
from baton.transfer.memory.regions import Memory, Span
from baton.transfer.memory.segments import Kind, Segment

MOST_PADDED = 1 + LARGEST_PADDING


class Crossing:
    """The runs of bytes between our ranks and a peer's, in both directions."""

    def __init__(self, memory: Memory, theirs: Sequence[Span]) -> None:
        """theirs: the peer's pools, see `Memory.spans`."""
        self._ours = memory.spans
        self._theirs = tuple(theirs)
        ranks = len(self._ours) // POOLS_A_RANK, len(self._theirs) // POOLS_A_RANK
        self._writes = RankMoves(memory.slots, memory.pages, *ranks)
        self._reads = RankMoves(memory.slots, memory.pages, *reversed(ranks))
        self._slots = memory.slots
        self._page_size = memory.pages.page_size
        self._gathering: Gathering | None = None
        self._scattering: Scattering | None = None

    def written(
        self, segment: Segment, source: StateRef, target: StateRef, buffer: Bytes | None
    ) -> tuple[Parts, Parts]:
        """Return the runs of a write, from our `source` to the peer's `target`.

        buffer: for what lies apart on one of the sides, see `Gathering`; None: nothing is copied
        """
        here, there = (self._ours, source), (self._theirs, target)
        if buffer is None:
            return self._runs(self._writes, segment, here, there)
        if self._gathering is None:
            self._gathering = Gathering(self._writes, self._ours, self._page_size)
        return self._gathering.runs(segment, source, there, buffer)

    def fetched(
        self, segment: Segment, into: StateRef, source: StateRef, buffer: Bytes | None
    ) -> StagedRead:
        """Return the runs of a read, in our `into` and in the peer's `source`.

        buffer: for what lies apart on one of the sides, see `Scattering`; None: nothing is copied
        """
        here, there = (self._ours, into), (self._theirs, source)
        if buffer is None:
            theirs, ours = self._runs(self._reads, segment, there, here)
            return StagedRead(ours, theirs)
        if self._scattering is None:
            self._scattering = Scattering(self._reads, self._ours, self._page_size)
        return self._scattering.staged(segment, into, there, buffer)

    def landed(self, staged: StagedRead, buffer: Bytes) -> None:
        """Bring to our pools what a read that has ended has left in its buffer."""
        if self._scattering is not None:
            self._scattering.scatter(staged, buffer)

    def written_bytes(self, segment: Segment) -> int:
        """Return the bytes of a write: what several of the peer's ranks keep counts for each."""
        return self._block_bytes(segment) or self._payload(self._writes, segment)

    def _runs(
        self, moves: RankMoves, segment: Segment, source: Side, target: Side
    ) -> tuple[Parts, Parts]:
        if self._block_bytes(segment):
            return whole_blocks(segment, source, target, self._page_size)
        return runs_apart(moves, segment, source, target, self._page_size)

    def _block_bytes(self, segment: Segment) -> int:
        """Return the bytes of a segment that moves as whole blocks of each rank, with what is
        padding; 0 of one that does not: the numbers of ranks differ, or it does not nearly fill
        them."""
        count = filled(segment, self._slots.state_bytes, self._page_size)
        if not count or len(self._ours) != len(self._theirs):
            return 0
        pools = self._ours[int(segment.kind is Kind.KV) :: POOLS_A_RANK]
        whole = count * sum(span.block_bytes for span in pools)
        return whole if whole <= self._payload(self._writes, segment) * MOST_PADDED else 0

    def _payload(self, moves: RankMoves, segment: Segment) -> int:
        if segment.kind is not Kind.KV:
            return moves.nbytes(segment)
        runs = alike(segment, self._page_size)
        return sum((pages.stop - pages.start) * moves.nbytes(rows) for pages, rows in runs)


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
