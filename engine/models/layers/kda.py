"""Kimi Delta Attention (arXiv:2510.26692): a gated delta net that decays each key channel alone."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from baton.engine.layout.shards import SubBlock
from baton.engine.models.layers.gated_delta import DeltaShape, decay_rate, delta_commit, mix
from baton.engine.models.layers.linear import ColumnLinear, RowLinear, WholeLinear
from baton.engine.models.recurrent_layer import Commit
from baton.engine.models.scope import Scope
from baton.engine.models.step import Step
from baton.kernels.delta_mixer import DeltaInputs, DeltaWeights


class KimiDelta:
    """[q | k | v | b] of x; decays and output gates of x by way of one head's channels; conv over
    [q k v]; the rule; norm(o) * sigmoid(gate) a head."""

    mixes = True

    def __init__(self, scope: Scope, shape: DeltaShape, index: int) -> None:
        """index: which of the model's recurrent layers this is (its place in a state slot)."""
        self.index = index
        self.kernels = scope.kernels
        hidden, low = shape.hidden, shape.key_dim
        heads = SubBlock("linear attention heads", shape.heads)
        wide = replace(heads, width=low)
        parts = {"q_proj": (wide,), "k_proj": (wide,), "v_proj": (wide,), "b_proj": (heads,)}
        self.in_proj = ColumnLinear(scope, parts, hidden)
        self.decay_down = WholeLinear(scope, "f_a_proj", low, hidden)
        self.decay_up = ColumnLinear(scope, {"f_b_proj": (wide,)}, low)
        self.gate_down = WholeLinear(scope, "g_a_proj", low, hidden)
        self.gate_up = ColumnLinear(scope, {"g_b_proj": (wide,)}, low)
        own = scope.shard.part(heads)
        self.widths = [3 * own * low, own]
        fp32 = torch.float32
        convs = {name: (wide,) for name in ("q_conv1d", "k_conv1d", "v_conv1d")}
        taps = scope.rows(convs, "weight", (1, shape.width), fp32)
        self.weights = DeltaWeights(
            conv_weight=taps.squeeze(1),
            # Flat also for a tensor without data, where nothing is computed.
            A=scope.part("A_log", (1, 1, shape.heads, 1), (heads,), 2, fp32, decay_rate).flatten(),
            dt_bias=scope.part("dt_bias", (wide.places,), (wide,), dtype=fp32),
            norm_weight=scope.tensor("o_norm.weight", shape.value_dim, dtype=fp32),
            key_heads=own,
            key_dim=low,
            eps=shape.norm_eps,
            silu_gate=False,
        )
        self.out_proj = RowLinear(scope, "o_proj", hidden, wide)
        scope.recurrent.append(self)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        qkv, b = torch.split(self.in_proj(x), self.widths, dim=-1)
        decays, gates = self.decay_up(self.decay_down(x)), self.gate_up(self.gate_down(x))
        inputs = DeltaInputs(qkv=qkv, z=gates, b=b, a=decays)
        return self.out_proj(mix(self.kernels, self.weights, inputs, step, self.index))

    @classmethod
    def commit_of(cls, layers: "Sequence[KimiDelta]") -> Commit:
        """See `RecurrentLayer`."""
        return delta_commit(layers)
