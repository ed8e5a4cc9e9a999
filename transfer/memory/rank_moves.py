"""The moves of one segment's bytes between the ranks of two engines, or between ranks and one run
of bytes.

Pure geometry, as in `reshard`: the caller binds blocks to ids and ranks to pools. A segment's bytes
are those of the undivided layout, in the order of `segments.pieces`, however many ranks keep them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from baton.engine.layout.layout import PageLayout, SlotLayout
from baton.transfer.memory.reshard import Move, Place, reshard
from baton.transfer.memory.segments import Kind, Segment


@dataclass(frozen=True)
class SegmentMove:
    """`rows` rows of `nbytes` bytes, in the request's block number `block` on both sides.

    component: the tensor, by its place in the undivided layout
    source, destination: the places of the first row
    at, at_stride: of the rows in the segment's bytes
    """

    block: int
    component: int
    source: Place
    destination: Place
    at: int
    at_stride: int
    rows: int
    nbytes: int


class RankMoves:
    """All moves of slots and pages from `sources` ranks to `destinations` ranks."""

    def __init__(
        self, slots: SlotLayout, pages: PageLayout, sources: int, destinations: int
    ) -> None:
        """slots, pages: undivided. Raises ConfigError as `reshard` does."""
        self._slots = slots
        self._pages = pages
        of_slot = reshard(slots, sources, destinations)
        self._of_slot = _by_component(of_slot, len(slots.components))
        of_page = reshard(pages, sources, destinations)
        self._of_page = _by_component(of_page, len(pages.components))

    def filling(self, segment: Segment) -> Iterator[list[SegmentMove]]:
        """Yield the same moves, together those which fill one tensor of a destination's block: its
        rows in the segment then are one run of bytes."""
        for _, moves in groupby(self.of(segment), _filled):
            yield list(moves)

    def draining(self, segment: Segment) -> Iterator[list[SegmentMove]]:
        """Yield the same moves, together those which need one tensor of a source's block."""
        for _, moves in groupby(sorted(self.of(segment), key=_drained), _drained):
            yield list(moves)

    def of(self, segment: Segment) -> Iterator[SegmentMove]:
        """Yield the moves that bring a segment's bytes to every rank that keeps them."""
        return self._of_kv(segment) if segment.kind is Kind.KV else self._of_state(segment)

    def nbytes(self, segment: Segment) -> int:
        """Return the bytes that all destinations receive: what several keep counts for each."""
        return sum(move.rows * move.nbytes for move in self.of(segment))

    def _of_state(self, segment: Segment) -> Iterator[SegmentMove]:
        dense = 0  # offset of the component among all bytes of the state
        components = zip(self._slots.components, self._of_slot, strict=True)
        for number, (component, moves) in enumerate(components):
            for move in moves:
                first = dense + move.start
                low = max(segment.start, first)
                high = min(segment.end, first + move.nbytes)
                if low < high:
                    source = _further(move.source, low - first)
                    target = _further(move.destination, low - first)
                    nbytes = high - low
                    at = low - segment.start
                    yield SegmentMove(0, number, source, target, at, nbytes, 1, nbytes)
            dense += component.nbytes

    def _of_kv(self, segment: Segment) -> Iterator[SegmentMove]:
        size, start, end = self._pages.page_size, segment.start, segment.end
        components = self._pages.components_of(segment.layers)
        numbers = [self._pages.components.index(component) for component in components]
        at = 0
        for page in range(start // size, self._pages.pages_for(end)):
            low, high = max(start - page * size, 0), min(end - page * size, size)
            for number, component in zip(numbers, components, strict=True):
                token = component.nbytes // size
                for move in self._of_page[number]:
                    source = _further(move.source, low * move.source.stride)
                    target = _further(move.destination, low * move.destination.stride)
                    rows = high - low
                    yield SegmentMove(
                        page, number, source, target, at + move.start, token, rows, move.nbytes
                    )
                at += (high - low) * token


def _filled(move: SegmentMove) -> tuple[int, int, int]:
    return move.block, move.component, move.destination.rank


def _drained(move: SegmentMove) -> tuple[int, int, int]:
    return move.block, move.component, move.source.rank


def _further(place: Place, nbytes: int) -> Place:
    return replace(place, offset=place.offset + nbytes)


def _by_component(moves: Iterable[Move], components: int) -> list[list[Move]]:
    found: list[list[Move]] = [[] for _ in range(components)]
    for move in moves:
        found[move.component].append(move)
    return found
