"""A rank's part of a layer, and how ranks add up their parts."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from baton.core.errors import ConfigError


@dataclass(frozen=True)
class Shard:
    """Rank `rank` of `size` tensor-parallel ranks."""

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ConfigError(f"shard rank must be in 0 .. {self.size - 1}; got {self.rank}")

    def part(self, total: int, what: str) -> int:
        """Return this rank's share of `total` heads, channels or groups."""
        if total % self.size:
            raise ConfigError(f"{what} ({total}) cannot be divided among {self.size} ranks")
        return total // self.size


class Comm(Protocol):
    """The collectives that layers use."""

    def all_reduce(self, x: Tensor) -> Tensor:
        """Return the sum of every rank's `x`, same shape and dtype; may be in place."""
        ...


class SingleComm:
    """The collectives of a single rank, which has nothing to add up."""

    def all_reduce(self, x: Tensor) -> Tensor:
        return x
