"""Segments: the bytes of a slot or of pages that one message carries and one checksum covers.

A segment is a run of the request's state in *dense* bytes (all components end to end, without
alignment), or a run of its tokens' KV in all attention layers or in some consecutive ones. Its
pieces say where the bytes lie. A piece's `block` counts the request's own pages (its slot is block
0); the reader or writer binds it to a pool's ids. This is pure geometry, without tensors and
addresses.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from baton.engine.layout.layout import PageLayout, SlotLayout

MESSAGE_BYTES = 1 << 20
"""Payload of one message, in bytes. Python gRPC is fastest near 1 MiB."""


class Kind(IntEnum):
    STATE = 1  # a request's live state
    KV = 2
    SNAPSHOT = 3  # the state at the end of a prefix, from one prefix cache to another


@dataclass(frozen=True)
class Segment:
    """A run [start, end): dense bytes of the slot (STATE, SNAPSHOT), or tokens (KV)."""

    kind: Kind
    start: int
    end: int
    layers: tuple[int, int] | None = None  # KV: attention layers [first, end); None: all of them

    def __str__(self) -> str:
        unit = "tokens" if self.kind is Kind.KV else "bytes"
        of = "" if self.layers is None else " of layers [{}, {})".format(*self.layers)
        return f"{self.kind.name.lower()} {unit} [{self.start}, {self.end}){of}"


@dataclass(frozen=True)
class Piece:
    """`nbytes` contiguous bytes at `offset` of the request's block number `block`."""

    block: int
    offset: int
    nbytes: int


def cut_state(
    layout: SlotLayout,
    limit: int = MESSAGE_BYTES,
    *,
    start: int = 0,
    end: int | None = None,
    kind: Kind = Kind.STATE,
) -> Iterator[Segment]:
    """Cut dense bytes [start, end) of one slot into segments of at most `limit` bytes.

    end: None means the end of the slot.
    """
    last = layout.state_bytes if end is None else end
    for at in range(start, last, limit):
        yield Segment(kind, at, min(at + limit, last))


def cut_kv(
    layout: PageLayout,
    start: int,
    end: int,
    limit: int = MESSAGE_BYTES,
    layers: tuple[int, int] | None = None,
) -> Iterator[Segment]:
    """Cut the KV of tokens [start, end) into segments of at most `limit` bytes (or one token).

    Segments that can hold a page end at page ends, because whole pages are the fewest pieces.
    """
    token_bytes = layout.bytes_of(layers)
    if not token_bytes:
        return
    most = max(1, limit // token_bytes)
    if most >= layout.page_size:
        most -= most % layout.page_size
    while start < end:
        stop = min(end, start - start % min(most, layout.page_size) + most)
        yield Segment(Kind.KV, start, stop, layers)
        start = stop


def cut_prefix(
    slots: SlotLayout, pages: PageLayout, kv_from: int, tokens: int, limit: int
) -> list[Segment]:
    """Cut a prefix for another prefix cache: KV of tokens [kv_from, tokens), and the state."""
    return [
        *cut_kv(pages, kv_from, tokens, limit),
        *cut_state(slots, limit, kind=Kind.SNAPSHOT),
    ]


def pieces(segment: Segment, slots: SlotLayout, pages: PageLayout) -> list[Piece]:
    """Return the pieces of a segment, in the order in which they are sent."""
    if segment.kind is Kind.KV:
        return _merged(_kv_pieces(pages, segment))
    return _merged(_state_pieces(slots, segment.start, segment.end))


def nbytes(segment: Segment, pages: PageLayout) -> int:
    """Return the payload bytes of `segment`."""
    units = segment.end - segment.start
    return units * pages.bytes_of(segment.layers) if segment.kind is Kind.KV else units


def _state_pieces(layout: SlotLayout, start: int, end: int) -> Iterator[Piece]:
    dense = 0  # dense offset of the component
    for component in layout.components:
        low, high = max(start, dense), min(end, dense + component.nbytes)
        if low < high:
            yield Piece(0, component.offset + low - dense, high - low)
        dense += component.nbytes


def _kv_pieces(layout: PageLayout, segment: Segment) -> Iterator[Piece]:
    size, start, end = layout.page_size, segment.start, segment.end
    components = layout.components_of(segment.layers)
    for page in range(start // size, layout.pages_for(end)):
        low, high = max(start - page * size, 0), min(end - page * size, size)
        if high - low == size and layout.whole and segment.layers is None:
            yield Piece(page, 0, layout.page_bytes)
            continue
        for component in components:
            token = component.nbytes // size
            yield Piece(page, component.offset + low * token, (high - low) * token)


def _merged(found: Iterator[Piece]) -> list[Piece]:
    """Join neighbours that touch, so that a whole page is one copy."""
    merged: list[Piece] = []
    for piece in found:
        last = merged[-1] if merged else None
        if last and (last.block, last.offset + last.nbytes) == (piece.block, piece.offset):
            merged[-1] = Piece(last.block, last.offset, last.nbytes + piece.nbytes)
        else:
            merged.append(piece)
    return merged
