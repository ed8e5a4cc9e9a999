"""The division of one axis of a state, cache or weight tensor among tensor-parallel ranks. Pure
geometry.

A fused axis such as [x | B | C] or [q | k | v] is several blocks end to end, and every block is
divided on its own: rank r of a mixer needs its x with its B and C, not the r-th part of the whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from baton.core.errors import ConfigError


@dataclass(frozen=True)
class SubBlock:
    """`units` heads or groups, of `width` neighbouring places on the axis each."""

    what: str  # for errors: "KV heads"
    units: int
    width: int = 1
    shared: bool = False  # where there are fewer units than ranks, several ranks keep the same one
    uneven: bool = False  # where ranks do not divide the units, some keep one more than others

    def held_by(self, rank: int, size: int) -> range:
        """Return the units that rank `rank` of `size` keeps. Raises ConfigError."""
        if self.units % size == 0 or (self.uneven and self.units >= size):
            return range(rank * self.units // size, (rank + 1) * self.units // size)
        if self.shared and size % self.units == 0:
            unit = rank // (size // self.units)
            return range(unit, unit + 1)
        wanted = f"a multiple of {size}" + (f", or a divisor of {size}" if self.shared else "")
        if self.uneven:
            wanted = f"at least {size}"
        raise ConfigError(
            f"{self.what} ({self.units}) cannot be divided among {size} ranks: expected {wanted}"
        )

    @property
    def places(self) -> int:
        """The number of places on the whole axis."""
        return self.units * self.width

    def places_of(self, rank: int, size: int) -> int:
        """Return the number of places on that rank's axis."""
        return len(self.held_by(rank, size)) * self.width

    def part_of(self, rank: int, size: int) -> "SubBlock":
        """Return the block as that rank sees it."""
        return replace(self, units=len(self.held_by(rank, size)))


def length(blocks: Sequence[SubBlock]) -> int:
    """Return the number of places on the axis."""
    return sum(block.places for block in blocks)


def parts(blocks: Sequence[SubBlock], rank: int, size: int) -> tuple[SubBlock, ...]:
    """Return all blocks as that rank sees them. Raises ConfigError."""
    return tuple(block.part_of(rank, size) for block in blocks)


def spans(blocks: Sequence[SubBlock], rank: int, size: int) -> tuple[range, ...]:
    """Return the places of the whole axis that rank `rank` of `size` keeps, a run for each block.
    Raises ConfigError.
    """
    found, first = [], 0
    for block in blocks:
        held = block.held_by(rank, size)
        found.append(range(first + held.start * block.width, first + held.stop * block.width))
        first += block.places
    return tuple(found)
