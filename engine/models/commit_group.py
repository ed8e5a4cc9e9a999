"""The commit of verified tokens in all recurrent layers of one kind at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from torch import Tensor

from baton.core.errors import InvariantError
from baton.engine.layout.layout import RecurrentShape
from baton.engine.memory.state_pool import StatePool
from baton.engine.models.recurrent_layer import Commit, RecurrentLayer
from baton.kernels.verify import Accepted


@dataclass(frozen=True)
class CommitGroup:
    """Neighbouring recurrent layers of one kind and shape. layers: their places in a slot."""

    layers: slice
    commit: Commit

    def __call__(self, kept: Sequence[Tensor], states: StatePool, accepted: Accepted) -> None:
        """Write the layers' states after the accepted tokens.

        kept: [B Q, values] of each of the model's recurrent layers, in one tensor for a group
        """
        ssm = [pool for pool in states.ssm[self.layers] if pool is not None]
        self.commit(
            stacked(kept[self.layers]),
            stacked(states.conv[self.layers]),
            stacked(ssm) if ssm else None,
            accepted,
        )


def commit_groups(
    layers: Sequence[RecurrentLayer], shapes: Sequence[RecurrentShape]
) -> tuple[CommitGroup, ...]:
    """Group recurrent layers for their commits, in order. shapes: of each layer's state."""
    found = []
    for _, group in groupby(layers, lambda layer: (type(layer), shapes[layer.index])):
        alike = list(group)
        places = slice(alike[0].index, alike[-1].index + 1)
        found.append(CommitGroup(places, type(alike[0]).commit_of(alike)))
    return tuple(found)


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Return [len(tensors), *shape], a view of tensors that lie evenly spaced in one storage.

    Raises InvariantError for others.
    """
    first, offset = tensors[0], tensors[0].storage_offset()
    step = tensors[1].storage_offset() - offset if len(tensors) > 1 else 0
    storage = first.untyped_storage()._cdata
    for place, other in enumerate(tensors):
        same = other.shape == first.shape and other.stride() == first.stride()
        even = other.storage_offset() == offset + place * step
        if not (same and even and other.untyped_storage()._cdata == storage):
            raise InvariantError(
                f"tensor {place} of {len(tensors)} has shape {tuple(other.shape)} and lies "
                f"{other.storage_offset()} values into its storage; expected {tuple(first.shape)}, "
                f"{offset + place * step} values into that of the first"
            )
    return first.as_strided((len(tensors), *first.shape), (step, *first.stride()), offset)
