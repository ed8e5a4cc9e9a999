"""The norm before each branch, the norm that ranks share, and the weights of every norm."""

import torch
from torch import Tensor

from baton.engine.layout.shards import SubBlock
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


class SharedGroupNorm:
    """x / sqrt(mean(x^2) + eps) * weight, the mean over a group of which this rank has a part of
    the channels. Computed in float32."""

    def __init__(
        self, scope: Scope, name: str, channels: SubBlock, groups: SubBlock, eps: float
    ) -> None:
        """channels: all that are normed. groups: fewer than there are ranks."""
        self.comm = scope.comm
        self.kernels = scope.kernels
        self.eps = eps
        self.groups = groups.units
        (self.group,) = scope.shard.held(groups)
        self.width = channels.places // groups.units  # channels of a whole group
        shape = (channels.places,)
        self.weight = scope.part(f"{name}.weight", shape, (channels,), dtype=torch.float32)

    def __call__(self, x: Tensor) -> Tensor:
        """Norm. x: [T, this rank's channels] -> shape and dtype of x"""
        sums = self.comm.all_reduce(self.kernels.square_sums(x, self.groups, self.group))
        return self.kernels.norm_by_sums(x, sums, self.group, self.width, self.weight, self.eps)
