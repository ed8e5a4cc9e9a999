"""The plan that moves state from P tensor-parallel ranks to D ranks.

It is pure geometry. The plan says which bytes of each source rank's slot (or page) go to which
place of each destination rank's. The caller binds ranks to peers and blocks to ids. Every byte of
every destination is written once. Where several sources keep the same head, each of them serves
some of the destinations.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from baton.engine.layout.layout import Component, PageLayout, SlotLayout
from baton.engine.layout.shards import SubBlock


@dataclass(frozen=True)
class Place:
    """Rows of bytes in one rank's slot or page: one every `stride` bytes from `offset`."""

    rank: int
    offset: int
    stride: int


@dataclass(frozen=True)
class Run:
    """`nbytes` contiguous bytes on both sides. Offsets from the start of the slot or page."""

    source_offset: int
    destination_offset: int
    nbytes: int


@dataclass(frozen=True)
class Move:
    """`rows` rows of `nbytes` bytes each. A page has a row for each token, a slot's tensor one.

    component: the tensor, by its place in the undivided layout
    start: of each row, in bytes from the start of the undivided tensor's row
    """

    component: int
    start: int
    source: Place
    destination: Place
    rows: int
    nbytes: int

    def runs(self, start: int = 0, end: int | None = None) -> Iterator[Run]:
        """Yield the runs of rows [start, end), so that KV can be moved by tokens.

        Rows that touch form one run.
        """
        stop = self.rows if end is None else min(end, self.rows)
        if stop <= start:
            return
        touching = self.source.stride == self.destination.stride == self.nbytes
        each = stop - start if touching else 1
        for row in range(start, stop, each):
            yield Run(
                self.source.offset + row * self.source.stride,
                self.destination.offset + row * self.destination.stride,
                each * self.nbytes,
            )


def reshard(whole: SlotLayout | PageLayout, sources: int, destinations: int) -> tuple[Move, ...]:
    """Return the moves that fill the destinations' slots (or pages) of one request.

    whole: the layout of a rank that keeps everything. sources, destinations: tensor-parallel ranks
    on each side. Raises ConfigError, with both numbers, where a tensor cannot be divided.
    """
    held = [whole.shard(rank, sources).components for rank in range(sources)]
    wanted = [whole.shard(rank, destinations).components for rank in range(destinations)]
    moves: list[Move] = []
    for rank, theirs in enumerate(wanted):
        for index, component in enumerate(whole.components):
            sides = _Sides(index, component, [ours[index] for ours in held], theirs[index], rank)
            moves += sides.moves(destinations)
    return tuple(moves)


@dataclass(frozen=True)
class _Sides:
    """One tensor: undivided, as each source has it, and as one destination needs it."""

    index: int  # of the tensor in its layout
    whole: Component
    sources: list[Component]
    destination: Component
    rank: int  # the destination's

    def moves(self, destinations: int) -> Iterator[Move]:
        blocks = self.whole.blocks or (SubBlock("tensor", 1, self._axis_places, shared=True),)
        for number, block in enumerate(blocks):
            begin = _first_place(blocks, number, 1)
            wanted = block.held_by(self.rank, destinations)
            for rank in self._senders(block, wanted):
                held = block.held_by(rank, len(self.sources))
                low, high = max(held.start, wanted.start), min(held.stop, wanted.stop)
                first = _first_place(blocks, number, len(self.sources))
                ours = first + (low - held.start) * block.width
                first = _first_place(blocks, number, destinations)
                theirs = first + (low - wanted.start) * block.width
                yield Move(
                    self.index,
                    (begin + low * block.width) * self._place_bytes,
                    self._place(self.sources[rank], rank, ours),
                    self._place(self.destination, self.rank, theirs),
                    self._rows,
                    (high - low) * block.width * self._place_bytes,
                )

    def _senders(self, block: SubBlock, wanted: range) -> Iterator[int]:
        """Yield the source of each wanted run of units. Copies of a run take turns."""
        copies: dict[range, list[int]] = {}
        for rank in range(len(self.sources)):
            held = block.held_by(rank, len(self.sources))
            if max(held.start, wanted.start) < min(held.stop, wanted.stop):
                copies.setdefault(held, []).append(rank)
        for ranks in copies.values():
            yield ranks[self.rank % len(ranks)]

    def _place(self, component: Component, rank: int, place: int) -> Place:
        offset = component.offset + place * self._place_bytes
        return Place(rank, offset, component.nbytes // self._rows)

    @property
    def _axis_places(self) -> int:
        return self.whole.shape[self.whole.axis]

    @property
    def _rows(self) -> int:
        return prod(self.whole.shape[: self.whole.axis])

    @property
    def _place_bytes(self) -> int:
        """Return the bytes of one place on the axis, with all inner dimensions."""
        return prod(self.whole.shape[self.whole.axis + 1 :]) * self.whole.dtype.itemsize


def _first_place(blocks: tuple[SubBlock, ...], number: int, size: int) -> int:
    """Return where block `number` begins on the axis of each of `size` ranks, which are alike."""
    return sum(block.places_of(0, size) for block in blocks[:number])
