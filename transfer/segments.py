"""Which bytes of a slot and of pages one segment carries. Pure geometry, no tensors, no addresses.

A segment is a run of the request's state in *dense* bytes (every component end to end, without
alignment), or a run of its tokens' KV. It is what one message carries and what one checksum
covers. Its pieces say where the bytes lie; `block` counts the request's own pages (its slot is
block 0), and is bound to a pool's ids only by whoever reads or writes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from baton.engine.memory.layout import PageLayout, SlotLayout

MESSAGE_BYTES = 1 << 20
"""Payload of one message. Python gRPC is fastest near 1 MiB."""


class Kind(IntEnum):
    STATE = 1
    KV = 2


@dataclass(frozen=True)
class Segment:
    """STATE: dense bytes [start, end) of the slot. KV: tokens [start, end), all layers."""

    kind: Kind
    start: int
    end: int

    def __str__(self) -> str:
        unit = "bytes" if self.kind is Kind.STATE else "tokens"
        return f"{self.kind.name.lower()} {unit} [{self.start}, {self.end})"


@dataclass(frozen=True)
class Piece:
    """`nbytes` contiguous bytes at `offset` of the request's block number `block`."""

    block: int
    offset: int
    nbytes: int


def bytes_needed(slots: SlotLayout, pages: PageLayout, tokens: int, kv_from: int = 0) -> int:
    """What a hand-off of `tokens` tokens must move when the KV below `kv_from` is there already."""
    return slots.state_bytes + (tokens - kv_from) * pages.token_bytes


def cut_state(layout: SlotLayout, limit: int = MESSAGE_BYTES) -> Iterator[Segment]:
    """The whole state of one slot, in segments of at most `limit` bytes."""
    for start in range(0, layout.state_bytes, limit):
        yield Segment(Kind.STATE, start, min(start + limit, layout.state_bytes))


def cut_kv(
    layout: PageLayout, start: int, end: int, limit: int = MESSAGE_BYTES
) -> Iterator[Segment]:
    """KV of tokens [start, end), in segments of at most `limit` bytes (or one token).

    Cut at page ends where a segment can hold a page: whole pages are the fewest pieces.
    """
    if not layout.token_bytes:
        return
    most = max(1, limit // layout.token_bytes)
    if most >= layout.page_size:
        most -= most % layout.page_size
    while start < end:
        stop = min(end, start - start % min(most, layout.page_size) + most)
        yield Segment(Kind.KV, start, stop)
        start = stop


def pieces(segment: Segment, slots: SlotLayout, pages: PageLayout) -> list[Piece]:
    """Where the segment's bytes lie, in the order in which they travel."""
    if segment.kind is Kind.STATE:
        return _merged(_state_pieces(slots, segment.start, segment.end))
    return _merged(_kv_pieces(pages, segment.start, segment.end))


def nbytes(segment: Segment, pages: PageLayout) -> int:
    """Payload bytes of `segment`."""
    units = segment.end - segment.start
    return units if segment.kind is Kind.STATE else units * pages.token_bytes


def _state_pieces(layout: SlotLayout, start: int, end: int) -> Iterator[Piece]:
    dense = 0  # dense offset of the component
    for component in layout.components:
        low, high = max(start, dense), min(end, dense + component.nbytes)
        if low < high:
            yield Piece(0, component.offset + low - dense, high - low)
        dense += component.nbytes


def _kv_pieces(layout: PageLayout, start: int, end: int) -> Iterator[Piece]:
    size = layout.page_size
    for page in range(start // size, layout.pages_for(end)):
        low, high = max(start - page * size, 0), min(end - page * size, size)
        for component in layout.components:
            token = component.nbytes // size
            yield Piece(page, component.offset + low * token, (high - low) * token)


def _merged(found: Iterator[Piece]) -> list[Piece]:
    """Neighbours that touch become one: a whole page is one copy, not one a layer."""
    merged: list[Piece] = []
    for piece in found:
        last = merged[-1] if merged else None
        if last and (last.block, last.offset + last.nbytes) == (piece.block, piece.offset):
            merged[-1] = Piece(last.block, last.offset, last.nbytes + piece.nbytes)
        else:
            merged.append(piece)
    return merged
