"""The gated short convolution of LFM2: a mixer whose only state is its last few inputs."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.engine.layout.layout import RecurrentShape
from baton.engine.models.layers.linear import ColumnLinear, RowLinear
from baton.engine.models.recurrent_layer import Commit
from baton.engine.models.scope import Scope
from baton.engine.models.step import Step
from baton.kernels.verify import Accepted


@dataclass(frozen=True)
class ShortConvShape:
    """The sizes of one mixer. Set by the family's config reader."""

    hidden: int
    width: int  # taps of the convolution
    bias: bool  # of the convolution and of both projections

    @property
    def state(self) -> RecurrentShape:
        return RecurrentShape(conv=(self.hidden, self.width - 1), ssm=None)


class ShortConv:
    """in_proj -> [B | C | x]; out_proj(C * conv(B * x))."""

    mixes = True

    def __init__(self, scope: Scope, shape: ShortConvShape, index: int) -> None:
        """index: which of the model's recurrent layers this is (its place in a state slot)."""
        self.index = index
        self.kernels = scope.kernels
        hidden, whole, fp32 = shape.hidden, (shape.hidden,), torch.float32
        self.in_proj = ColumnLinear(scope, {"in_proj": (hidden,) * 3}, hidden, shape.bias)
        taps = scope.part("conv.weight", (hidden, 1, shape.width), whole, dtype=fp32)
        self.taps = taps.squeeze(1)  # [channels, width]
        self.bias = scope.part("conv.bias", whole, whole, dtype=fp32) if shape.bias else None
        self.out_proj = RowLinear(scope, "out_proj", hidden, hidden, shape.bias)
        scope.recurrent.append(self)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        bcx, done = self.in_proj(x), step.decode_tokens
        pool = step.states.conv[self.index]
        parts = []
        if step.decode is not None:
            rows = step.decode
            given = (bcx[:done], self.taps, self.bias, pool, rows.read_slots)
            if rows.kept is None:
                y = self.kernels.gated_conv_step(*given, rows.write_slots, rows.has_initial)
            else:
                kept = rows.kept[self.index]
                y = self.kernels.gated_conv_verify(*given, rows.has_initial, kept, rows.nodes)
            parts.append(y)
        if step.prefill is not None:
            parts.append(step.prefill.conv(bcx[done:], self.taps, self.bias, pool))
        step.state_written(self.index)
        return self.out_proj(parts[0] if len(parts) == 1 else torch.cat(parts))

    @classmethod
    def commit_of(cls, layers: "Sequence[ShortConv]") -> Commit:
        """See `RecurrentLayer`."""
        kernels, width = layers[0].kernels, layers[0].taps.shape[1]

        def commit(
            kept: Tensor, conv_pools: Tensor, state_pools: Tensor | None, accepted: Accepted
        ) -> None:
            kernels.gated_conv_commit(kept, width, conv_pools, accepted)

        return commit
