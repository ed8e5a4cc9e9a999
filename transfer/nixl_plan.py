"""Where one segment lies, as NIXL takes it: whole blocks by number, or runs of bytes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from baton.transfer.nixl_agent import Parts
from baton.transfer.regions import EngineMemory, Holder, Span
from baton.transfer.segments import Kind, Piece, Segment, nbytes

LARGEST_PADDING = 1 / 64
"""Of a block that is sent whole, alignment and all, rather than piece by piece."""
SLOTS, PAGES = 0, 1


@dataclass(frozen=True)
class Cut:
    """One segment, bound to no pool yet. `blocks` counts the request's own (its slot is 0)."""

    pool: int  # SLOTS or PAGES
    blocks: tuple[int, ...]  # sent whole; empty: by pieces
    pieces: tuple[Piece, ...]
    nbytes: int  # on the wire, padding included

    def ids(self, holder: Holder) -> list[int]:
        """The whole blocks' numbers in the pool of `holder`."""
        return [_id(self.pool, block, holder) for block in self.blocks]

    def parts(self, holder: Holder, span: Span) -> Parts:
        """The pieces' addresses in the pool at `span`."""
        starts = (
            span.address + _id(self.pool, p.block, holder) * span.block_bytes + p.offset
            for p in self.pieces
        )
        device = span.device or 0
        rows = [(at, p.nbytes, device) for at, p in zip(starts, self.pieces, strict=True)]
        return np.array(rows, dtype=np.uint64)


def cut(segment: Segment, memory: EngineMemory) -> Cut:
    """Whole blocks where the segment is that, nearly: prepared, and one descriptor each."""
    pool = PAGES if segment.kind is Kind.KV else SLOTS
    blocks, size = _whole(segment, memory)
    return Cut(pool, tuple(blocks), () if blocks else tuple(memory.pieces(segment)), size)


def wire_bytes(segment: Segment, memory: EngineMemory) -> int:
    """`cut(...).nbytes`, without finding the pieces."""
    return _whole(segment, memory)[1]


def _whole(segment: Segment, memory: EngineMemory) -> tuple[Sequence[int], int]:
    """The blocks to send whole, none where it is to be pieces; and the bytes on the wire."""
    slots, pages = memory.slots, memory.pages
    size = nbytes(segment, pages)
    blocks: Sequence[int] = ()
    block_bytes = slots.slot_bytes
    if segment.kind is not Kind.KV:
        blocks = (0,) if size == slots.state_bytes else ()
    elif segment.layers is None and not (segment.start % pages.page_size):
        block_bytes = pages.page_bytes
        if not segment.end % pages.page_size:
            blocks = range(segment.start // pages.page_size, segment.end // pages.page_size)
    whole = len(blocks) * block_bytes
    return (blocks, whole) if blocks and whole <= size * (1 + LARGEST_PADDING) else ((), size)


def _id(pool: int, block: int, holder: Holder) -> int:
    return holder.pages[block] if pool == PAGES else holder.slot
