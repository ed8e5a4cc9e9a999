"""Feed-forwards: gated, down(act(gate x) * up x), and not, down(relu(up x)^2)."""

from collections.abc import Mapping, Sequence
from copy import copy

from torch import Tensor

from baton.engine.layout.shards import SubBlock
from baton.engine.models.layers.base import DividedLayer
from baton.engine.models.layers.linear import ColumnLinear, Linear, RowLinear, WholeLinear
from baton.engine.models.scope import Scope
from baton.engine.models.step import Step

_GRANULES = (8, 4, 2)  # neighbouring channels that stay on one rank, at best
_RANKS = 8  # that a feed-forward should be divided among


def channels(width: int) -> SubBlock:
    """Return the inner channels of a feed-forward, as ranks divide them: not evenly where they
    cannot.
    """
    fits = (g for g in _GRANULES if width % g == 0 and width // g >= _RANKS)
    granule = next(fits, 1)
    return SubBlock("feed-forward channels", width // granule, granule, uneven=True)


class GatedMlp(DividedLayer):
    """Gate and up projections are one matrix, gate rows first, whatever the checkpoint does."""

    def __init__(
        self,
        scope: Scope,
        hidden: int,
        intermediate: int,
        gate_up: Mapping[str, Sequence[int]],
        down: str,
        bias: bool = False,
        gelu: bool = False,
    ) -> None:
        """gate_up: the tensor, or the two, that hold gate and up, with their row blocks.
        gelu: act is that, the exact one, instead of silu."""
        self.gated = scope.kernels.geglu if gelu else scope.kernels.swiglu
        blocks = {name: [channels(rows) for rows in gate_up[name]] for name in gate_up}
        self.gate_up: Linear = ColumnLinear(scope, blocks, hidden, bias)
        self.down = RowLinear(scope, down, hidden, channels(intermediate), bias)
        self.comm = scope.comm

    def reused(self, gate_up: Linear) -> "GatedMlp":
        """Return these weights for another place in the model, with another projection of gate and
        up.
        """
        other = copy(self)
        other.gate_up = gate_up
        return other

    def part(self, x: Tensor, step: Step) -> Tensor:
        """See `DividedLayer`."""
        return self.down.part(self.gated(self.gate_up(x)))


class PartMlp(DividedLayer):
    """mlp(x) * sigmoid(gate(x)): each token takes as much of it as its gate says."""

    def __init__(self, scope: Scope, hidden: int, gate: str, mlp: GatedMlp) -> None:
        """gate: the name of the projection to one channel."""
        self.kernels = scope.kernels
        self.gate = WholeLinear(scope, gate, 1, hidden)
        self.mlp = mlp
        self.comm = scope.comm

    def part(self, x: Tensor, step: Step) -> Tensor:
        """See `DividedLayer`."""
        return self.kernels.sigmoid_gated(self.mlp.part(x, step), self.gate(x))


class Relu2Mlp(DividedLayer):
    """The feed-forward without a gate (So et al., 2021, arXiv:2109.08668)."""

    def __init__(self, scope: Scope, hidden: int, intermediate: int, bias: bool = False) -> None:
        self.kernels = scope.kernels
        inner = channels(intermediate)
        self.up = ColumnLinear(scope, {"up_proj": (inner,)}, hidden, bias)
        self.down = RowLinear(scope, "down_proj", hidden, inner, bias)
        self.comm = scope.comm

    def part(self, x: Tensor, step: Step) -> Tensor:
        """See `DividedLayer`."""
        return self.down.part(self.kernels.relu2(self.up(x)))
