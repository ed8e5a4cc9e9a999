"""The division of routed experts among tensor-parallel ranks."""

from dataclasses import dataclass

import torch
from torch import Tensor

from baton.core.errors import ConfigError
from baton.engine.layout.shards import SubBlock
from baton.engine.models.scope import Block, Scope
from baton.kernels.linear import ExpertWeight

_ROW_BYTES = 16  # what rows of an expert's matrices must be multiples of


@dataclass(frozen=True)
class ExpertShare:
    """The experts that this rank computes, and the inner channels that it computes of each: all
    experts in part, where ranks divide the channels, else some experts whole.

    experts: how many there are; own: those of this rank
    """

    experts: int
    own: range
    intermediate: int
    whole: bool

    @staticmethod
    def of(scope: Scope, hidden: int, intermediate: int, experts: int, top_k: int) -> "ExpertShare":
        """Divide `experts` of hidden x intermediate channels. Raises ConfigError where they cannot
        run, or cannot be divided.
        """
        size, item = scope.shard.size, scope.dtype.itemsize
        if item * intermediate % _ROW_BYTES or item * hidden % _ROW_BYTES or top_k > experts:
            raise ConfigError(
                f"experts of {hidden} x {intermediate} channels, {top_k} of {experts} a token, in "
                f"{scope.dtype} cannot run: rows must be multiples of {_ROW_BYTES} bytes, and a "
                "token cannot have more experts than there are"
            )
        if intermediate % size == 0 and item * (intermediate // size) % _ROW_BYTES == 0:
            return ExpertShare(experts, range(experts), intermediate, whole=False)
        block = SubBlock("experts", experts, uneven=True)
        return ExpertShare(experts, scope.shard.held(block), intermediate, whole=size > 1)

    @property
    def inner(self) -> tuple[Block, ...]:
        """The blocks of an expert's inner channels that ranks divide."""
        return () if self.whole else (self.intermediate,)

    def stacked(
        self, scope: Scope, name: str, shape: tuple[int, int, int], dim: int
    ) -> ExpertWeight:
        """Return this rank's part of all experts' matrices, one tensor of `shape`.

        dim: that of the inner channels, or of gate and up projections' one after the other
        """
        if self.whole:
            every = SubBlock("experts", self.experts, uneven=True)
            return scope.stacked_experts(name, shape, (every,), 0)
        blocks = self.inner * (shape[dim] // self.intermediate)
        return scope.stacked_experts(name, shape, blocks, dim)

    def local(self, weights: Tensor, experts: Tensor) -> tuple[Tensor, Tensor]:
        """Return each token's choices as indices into this rank's experts. Those of other ranks
        have the weight zero here; what they point to does not matter.

        weights: [T, top_k] float32; experts: [T, top_k] int64
        """
        if not self.whole:
            return weights, experts
        own = (experts >= self.own.start) & (experts < self.own.stop)
        index = torch.where(own, experts - self.own.start, experts % len(self.own))
        return weights * own, index
