"""An RMS norm over groups of channels that several tensor-parallel ranks share."""

import torch
from torch import Tensor

from baton.engine.layout.shards import SubBlock
from baton.engine.models.scope import Scope


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
