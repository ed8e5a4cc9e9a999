"""The memory of what verified tokens keep for the commit of those that are right."""

from itertools import groupby

import torch
from torch import Tensor

from baton.engine.settings.choices import windows_up_to
from baton.engine.step.forward_batch import Window
from baton.engine.step.model import Model


def kept_inputs(model: Model, tokens: int, device: torch.device) -> tuple[Tensor, ...]:
    """Allocate [tokens, values] for each recurrent layer, in the dtype of activations. Neighbouring
    layers of one shape lie in one tensor, as their commit needs them.

    tokens: the most that one step computes of requests that decode; 0 where steps verify nothing,
    then the result is ().
    """
    if not tokens:
        return ()
    native = model.kernels.native is not None
    dtype = torch.float32 if native else model.config.dtype
    found: list[Tensor] = []
    for shape, layers in groupby(model.config.recurrent):
        sizes = len(list(layers)), tokens, shape.kept
        found += torch.zeros(sizes, dtype=dtype, device=device).unbind()
    return tuple(found)


def tree_nodes(tokens: int, trees: bool) -> Tensor | None:
    """Allocate the links of the trees of one step, [tokens] int64; None where steps verify none.
    A row of it is as wide as a tree has nodes, not as the context. tokens: as in `kept_inputs`.
    """
    return torch.zeros(tokens, dtype=torch.int64) if trees else None


def windows(kept: tuple[Tensor, ...], most: int) -> tuple[Window, ...]:
    """Return the windows of several tokens that steps may have, `most` being the largest."""
    return tuple(Window(size, kept) for size in windows_up_to(most))
