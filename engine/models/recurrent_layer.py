"""The interface of layers with a recurrent state to the commit of verified tokens."""

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from baton.kernels.verify import Accepted


class Commit(Protocol):
    """The commit of L layers of one kind and shape."""

    def __call__(
        self, kept: Tensor, conv_pools: Tensor, state_pools: Tensor | None, accepted: Accepted
    ) -> None:
        """Write the layers' states after the accepted tokens.

        kept: [L, B Q, values], what verifying the tokens has kept; maybe overwritten
        conv_pools, state_pools: [L, slots, ...]; None where the layers are convolutions alone
        """
        ...


class RecurrentLayer(Protocol):
    """A mixer whose state lies in a slot."""

    index: int
    """The layer's place among the model's recurrent layers, and so in a slot."""

    @classmethod
    def commit_of(cls, layers: Sequence[Any]) -> Commit:
        """Return the commit of layers of this class and of one shape."""
        ...
