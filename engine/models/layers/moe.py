"""Mixture of experts with a softmax over the top-k router logits."""

from torch import Tensor

from baton.engine.errors import ConfigError
from baton.engine.models.scope import Scope
from baton.engine.models.step import Step
from baton.kernels.moe import experts_swiglu, route_softmax_topk


class SoftmaxTopKMoe:
    """Experts are gated like GatedMlp, stacked: [experts, 2 * intermediate, hidden] gate first.

    Ranks divide every expert's intermediate channels, so each computes all experts in part.
    """

    def __init__(
        self,
        scope: Scope,
        hidden: int,
        intermediate: int,
        experts: int,
        top_k: int,
        router: str,
        gate_up: str,
        down: str,
    ) -> None:
        """router, gate_up, down: the names of the tensors, already stacked over experts."""
        row = scope.dtype.itemsize * scope.shard.part(intermediate, "expert channels")
        if row % 16 or scope.dtype.itemsize * hidden % 16 or top_k > experts:
            raise ConfigError(
                f"experts of {hidden} x {intermediate} channels, {top_k} of {experts} a token, on "
                f"{scope.shard.size} ranks in {scope.dtype} cannot run: rows must be multiples of "
                "16 bytes, and a token cannot have more experts than there are"
            )
        self.top_k = top_k
        self.kernels = scope.kernels
        self.comm = scope.comm
        self.router = scope.tensor(router, experts, hidden)
        halves = (intermediate, intermediate)
        self.gate_up = scope.part(gate_up, (experts, 2 * intermediate, hidden), halves, dim=1)
        self.down = scope.part(down, (experts, hidden, intermediate), (intermediate,), dim=2)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        weights, experts = route_softmax_topk(self.kernels.linear(x, self.router, None), self.top_k)
        return self.comm.all_reduce(experts_swiglu(x, weights, experts, self.gate_up, self.down))
