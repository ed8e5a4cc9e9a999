"""The memory of what verified tokens keep for the commit of those that are right."""

import torch
from torch import Tensor

from baton.engine.memory.plan import MemoryPlan
from baton.engine.models.base import Model


def kept_inputs(plan: MemoryPlan, model: Model) -> tuple[Tensor, ...]:
    """Allocate [most tokens, values] for each recurrent layer, in the dtype of activations. ()
    where steps verify nothing.
    """
    if plan.config.window == 1:
        return ()
    native = model.kernels.native is not None
    dtype = torch.float32 if native else model.config.dtype
    device = torch.device(plan.config.device)
    tokens = plan.step.rows
    return tuple(
        torch.zeros((tokens, layer.kept), dtype=dtype, device=device)
        for layer in model.config.recurrent
    )
