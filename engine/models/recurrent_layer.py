"""The interface of a layer with a recurrent state to the commit of verified tokens."""

from typing import Protocol

from torch import Tensor

from baton.engine.memory.state_pool import StatePool
from baton.kernels.verify import Accepted


class RecurrentLayer(Protocol):
    """A mixer whose state lies in a slot."""

    index: int
    """The layer's place among the model's recurrent layers, and so in a slot."""

    def commit(self, kept: Tensor, states: StatePool, accepted: Accepted) -> None:
        """Write the layer's states after the accepted tokens.

        kept: [B Q, values], what verifying the tokens has kept in this layer
        """
        ...
