"""The place of one segment in NIXL's terms: whole blocks by number, or runs of bytes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from baton.core.state_ref import StateRef
from baton.transfer.channels.nixl.agent import Parts
from baton.transfer.memory.regions import EngineMemory, Memory, Span
from baton.transfer.memory.segments import Kind, Piece, Segment, nbytes

LARGEST_PADDING = 1 / 64
"""A block is sent whole while its alignment padding is at most this share of the payload."""
SLOTS, PAGES = 0, 1
SEGMENT_BYTES = 64 << 20
"""Large, because each post has a fixed cost of a fraction of a millisecond."""
CHECKED_BYTES = 8 << 20
"""The size of a segment with checksums. Smaller, so that the receiver checks one segment while the
next arrives."""


@dataclass(frozen=True)
class Cut:
    """One segment that is not yet bound to ids. `blocks` counts the request's own blocks: its
    pages from 0, and its slot is 0."""

    pool: int  # SLOTS or PAGES
    blocks: tuple[int, ...]  # sent whole; empty: sent by pieces
    pieces: tuple[Piece, ...]
    nbytes: int  # on the wire, padding included

    def ids(self, holder: StateRef) -> list[int]:
        """Return the ids of the whole blocks in the pool of `holder`."""
        return [_id(self.pool, block, holder) for block in self.blocks]

    def parts(self, holder: StateRef, span: Span) -> Parts:
        """Return the pieces' addresses in the pool at `span`: [pieces, 3] uint64."""
        starts = (
            span.address + _id(self.pool, p.block, holder) * span.block_bytes + p.offset
            for p in self.pieces
        )
        device = span.device or 0
        rows = [(at, p.nbytes, device) for at, p in zip(starts, self.pieces, strict=True)]
        return np.array(rows, dtype=np.uint64)


def segment_bytes(*, verify: bool) -> int:
    """Return the payload bytes of a segment, with or without checksums."""
    return CHECKED_BYTES if verify else SEGMENT_BYTES


def cut(segment: Segment, memory: EngineMemory) -> Cut:
    """Cut a segment into whole blocks where it nearly fills them, and into pieces elsewhere.

    A whole block has a prepared descriptor, and needs only one.
    """
    pool = PAGES if segment.kind is Kind.KV else SLOTS
    blocks, size = _whole(segment, memory)
    return Cut(pool, tuple(blocks), () if blocks else tuple(memory.pieces(segment)), size)


def wire_bytes(segment: Segment, memory: Memory) -> int:
    """Return the bytes that a segment takes on its way into this memory."""
    if isinstance(memory, EngineMemory):
        return _whole(segment, memory)[1]
    return memory.kept_bytes(segment)


def _whole(segment: Segment, memory: EngineMemory) -> tuple[Sequence[int], int]:
    """Return the blocks to send whole (empty: send pieces), and the bytes on the wire."""
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


def _id(pool: int, block: int, holder: StateRef) -> int:
    return holder.pages[block] if pool == PAGES else holder.slot
