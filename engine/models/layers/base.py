"""The interface of a layer to the decoder that runs it."""

from typing import Protocol

from torch import Tensor

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
