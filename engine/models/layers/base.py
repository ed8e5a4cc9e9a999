"""The interface of a layer to the decoder that runs it."""

from abc import ABC, abstractmethod
from typing import Protocol

from torch import Tensor

from baton.engine.collectives.comm import Comm
from baton.engine.models.step import Step


class Layer(Protocol):
    """A mixer or a feed-forward: what one residual branch computes."""

    @property
    def mixes(self) -> bool:
        """True if a token's output depends on other tokens."""
        ...

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """Run the layer.

        x: [T, hidden] -> [T, hidden], both in the model's dtype.
        """
        ...


class DividedLayer(ABC):
    """A layer whose output is the sum of what each rank computes, without a step between.

    Layers side by side add up their parts before the ranks do: once for all of them.
    """

    mixes = False
    comm: Comm

    @property
    def divided(self) -> bool:
        """False where this layer's options need the sum before its end."""
        return True

    @abstractmethod
    def part(self, x: Tensor, step: Step) -> Tensor:
        """Compute this rank's part of the sum. x: [T, hidden] -> [T, hidden]"""
        ...

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """See `Layer`."""
        return self.comm.all_reduce(self.part(x, step))
