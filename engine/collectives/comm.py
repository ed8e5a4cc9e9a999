"""A rank's part of a layer, and how ranks add up their parts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from baton.core.errors import ConfigError
from baton.engine.layout.shards import SubBlock
from baton.kernels.base import Kernels


@dataclass(frozen=True)
class Shard:
    """Rank `rank` of `size` tensor-parallel ranks."""

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ConfigError(f"shard rank must be in 0 .. {self.size - 1}; got {self.rank}")

    def held(self, block: SubBlock) -> range:
        """Return the units that this rank keeps of a block. Raises ConfigError."""
        return block.held_by(self.rank, self.size)

    def part(self, block: SubBlock) -> int:
        """Return the number of units that this rank keeps of a block. Raises ConfigError."""
        return len(self.held(block))


def meet(comm: "Comm", device: torch.device) -> None:
    """Wait until all ranks have come here; on a GPU, its stream does."""
    comm.all_reduce(torch.zeros(1, device=device))


class Comm(Protocol):
    """The collectives that layers use."""

    def all_reduce(self, x: Tensor) -> Tensor:
        """Return the sum of every rank's `x`, same shape and dtype; may be in place. All ranks get
        the same bits: routers and recurrent states decide by them, each rank for itself.
        """
        ...

    def gather(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        """Return every rank's columns side by side on rank 0, and `x` on the others.

        x: [T, this rank's columns] -> [T, sum of widths]; widths: the columns of each rank
        """
        ...

    def on(self, kernels: Kernels) -> "Comm":
        """Return the collectives of a model that runs on these kernels."""
        ...

    def check(self) -> None:
        """Raise the error of a collective that could not raise it itself. Called after a step."""
        ...


class RankComm(Comm, Protocol):
    """The collectives by which a replica's ranks keep together, and those of layers."""

    def broadcast(self, x: Tensor) -> Tensor:
        """Fill `x`, contiguous, with rank 0's, in place, and return it."""
        ...

    def end(self) -> None:
        """End what waits for other ranks, on the device too. No collective can follow."""
        ...


class SingleComm:
    """The collectives of a single rank, which has nothing to add up."""

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def gather(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        return x

    def on(self, kernels: Kernels) -> Comm:
        return self

    def check(self) -> None:
        """Do nothing: nobody else can fail."""
