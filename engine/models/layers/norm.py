"""The norm before each branch, and the weights of every norm."""

import torch
from torch import Tensor

from baton.engine.models.scope import Scope


class Norm:
    """RMS norm. weight: [hidden] float32."""

    def __init__(
        self, scope: Scope, name: str, hidden: int, eps: float, zero_centred: bool = False
    ) -> None:
        """zero_centred: the checkpoint stores the weight as its distance from one."""
        self.kernels = scope.kernels
        self.weight = norm_weight(scope, name, hidden, zero_centred)
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return self.kernels.rms_norm(x, self.weight, self.eps)


def norm_weight(scope: Scope, name: str, width: int, zero_centred: bool) -> Tensor:
    """Return [width] float32, the factors of a norm."""
    then = _plus_one if zero_centred else None
    return scope.part(f"{name}.weight", (width,), (), dtype=torch.float32, then=then)


def _plus_one(weight: Tensor) -> Tensor:
    return weight + 1.0
