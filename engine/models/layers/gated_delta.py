"""The gated delta net (Yang et al., 2024, arXiv:2412.06464), as Qwen3-Next and Qwen3.5 have it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from baton.core.errors import ConfigError
from baton.engine.layout.layout import RecurrentShape
from baton.engine.layout.shards import SubBlock, length
from baton.engine.models.fields import Fields
from baton.engine.models.layers.linear import ColumnLinear, RowLinear
from baton.engine.models.recurrent_layer import Commit
from baton.engine.models.scope import Scope
from baton.engine.models.step import Step
from baton.kernels.base import Kernels
from baton.kernels.delta_mixer import DeltaInputs, DeltaLayers, DeltaWeights


@dataclass(frozen=True)
class DeltaShape:
    """The sizes of one mixer. Set by the family's config reader."""

    hidden: int
    key_heads: int  # of queries and of keys
    heads: int  # of values; head h uses the query and key of head h // (heads // key_heads)
    key_dim: int
    value_dim: int
    width: int  # taps of the convolution
    norm_eps: float
    channelwise: bool = False  # each key channel has a decay of its own, not each head

    @property
    def keys(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        return self.heads * self.value_dim

    @property
    def blocks(self) -> tuple[SubBlock, SubBlock, SubBlock]:
        """Channels of queries, keys and values, which the convolution sees as one."""
        return (
            SubBlock("query heads", self.key_heads, self.key_dim),
            SubBlock("key heads", self.key_heads, self.key_dim),
            SubBlock("value heads", self.heads, self.value_dim),
        )

    @property
    def state(self) -> RecurrentShape:
        """The state of one sequence, key channels before value channels, as in transformers."""
        return RecurrentShape(
            conv=(length(self.blocks), self.width - 1),
            ssm=(self.heads, self.key_dim, self.value_dim),
            fused=self.blocks,
            gates=self.heads + (self.keys if self.channelwise else self.heads),
        )

    @staticmethod
    def read(fields: Fields, hidden: int, norm_eps: float) -> "DeltaShape":
        """Read the sizes from the fields that the Qwen families share."""
        key_heads = fields.integer("linear_num_key_heads")
        heads = fields.integer("linear_num_value_heads")
        if heads % key_heads:
            raise ConfigError(
                f"{fields.where}: linear_num_value_heads ({heads}) should be a multiple of "
                f"linear_num_key_heads ({key_heads})"
            )
        return DeltaShape(
            hidden=hidden,
            key_heads=key_heads,
            heads=heads,
            key_dim=fields.integer("linear_key_head_dim"),
            value_dim=fields.integer("linear_value_head_dim"),
            width=fields.integer("linear_conv_kernel_dim", 4, minimum=2),
            norm_eps=norm_eps,
        )


class GatedDeltaNet:
    """in_proj -> [q | k | v | z | b | a]; conv over [q k v]; the rule; norm(o) * silu(z) a head."""

    mixes = True

    def __init__(self, scope: Scope, shape: DeltaShape, index: int, interleaved: bool) -> None:
        """index: which of the model's recurrent layers this is (its place in a state slot).

        interleaved: the checkpoint has two projections whose rows go by key head, not four.
        """
        self.index = index
        self.kernels = scope.kernels
        queries, keys, values = shape.blocks
        heads = replace(values, width=1)
        if interleaved:
            each = shape.heads // shape.key_heads
            wide = 2 * (keys.places + values.places) // shape.key_heads
            rows = {
                "in_proj_qkvz": (replace(keys, width=wide),),
                "in_proj_ba": (replace(keys, width=2 * each),),
            }
            own_values = each * shape.value_dim
            head = [shape.key_dim, shape.key_dim, own_values, own_values]
            then = {
                "in_proj_qkvz": partial(_by_kind, head),
                "in_proj_ba": partial(_by_kind, [each, each]),
            }
            self.in_proj = ColumnLinear(scope, rows, shape.hidden, then=then)
        else:
            parts = {
                "in_proj_qkv": (queries, keys, values),
                "in_proj_z": (values,),
                "in_proj_b": (heads,),
                "in_proj_a": (heads,),
            }
            self.in_proj = ColumnLinear(scope, parts, shape.hidden)
        own_keys, own_heads = scope.shard.part(keys), scope.shard.part(values)
        own = own_heads * shape.value_dim
        self.widths = [2 * own_keys * shape.key_dim + own, own, own_heads, own_heads]
        taps = (length(shape.blocks), 1, shape.width)
        conv = scope.part("conv1d.weight", taps, shape.blocks, dtype=torch.float32)
        self.weights = DeltaWeights(
            conv_weight=conv.squeeze(1),
            A=scope.part("A_log", (shape.heads,), (heads,), dtype=torch.float32, then=decay_rate),
            dt_bias=scope.part("dt_bias", (shape.heads,), (heads,), dtype=torch.float32),
            norm_weight=scope.tensor("norm.weight", shape.value_dim, dtype=torch.float32),
            key_heads=own_keys,
            key_dim=shape.key_dim,
            eps=shape.norm_eps,
            silu_gate=True,
        )
        self.out_proj = RowLinear(scope, "out_proj", shape.hidden, values)
        scope.recurrent.append(self)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        inputs = DeltaInputs(*torch.split(self.in_proj(x), self.widths, dim=-1))
        return self.out_proj(mix(self.kernels, self.weights, inputs, step, self.index))

    @classmethod
    def commit_of(cls, layers: "Sequence[GatedDeltaNet]") -> Commit:
        """See `RecurrentLayer`."""
        return delta_commit(layers)


def _by_kind(sizes: list[int], rows: Tensor) -> Tensor:
    """Reorder rows that go by key head, each with `sizes` of several kinds, to rows that go by
    kind.
    """
    grouped = rows.view(-1, sum(sizes), *rows.shape[1:])
    return torch.cat([part.flatten(0, 1) for part in torch.split(grouped, sizes, dim=1)])


def mix(
    kernels: Kernels, weights: DeltaWeights, inputs: DeltaInputs, step: Step, index: int
) -> Tensor:
    """Run all rows of a step through recurrent layer `index`: [T, heads x value_dim]."""
    conv_pool, state_pool = step.states.conv[index], step.ssm(index)
    done = step.decode_tokens
    parts = []
    if step.decode is not None:
        rows = step.decode
        first = inputs.tokens(slice(done))
        given = (weights, first, conv_pool, state_pool, rows.read_slots)
        if rows.kept is None:
            y = kernels.gated_delta_step(*given, rows.write_slots, rows.has_initial)
        else:
            kept = rows.kept[index]
            y = kernels.gated_delta_verify(*given, rows.has_initial, kept, rows.nodes)
        parts.append(y)
    if step.prefill is not None:
        rest = inputs.tokens(slice(done, None))
        parts.append(step.prefill.delta(weights, rest, conv_pool, state_pool))
    step.state_written(index)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


class DeltaLayer(Protocol):
    """A layer of the gated delta rule."""

    kernels: Kernels
    weights: DeltaWeights


def delta_commit(layers: Sequence[DeltaLayer]) -> Commit:
    """Return the commit of layers of one shape, whose weights become views of those of all."""
    together = DeltaLayers.of([layer.weights for layer in layers])
    for layer, weights in zip(layers, together.each, strict=True):
        layer.weights = weights
    return partial(layers[0].kernels.gated_delta_commit, together)


def decay_rate(a_log: Tensor) -> Tensor:
    """Return A from its logarithm, of one head each: [heads] float32, negative."""
    return a_log.flatten().exp().neg()
