"""The Mamba-2 mixer (Dao and Gu, 2024, arXiv:2405.21060)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from baton.core.errors import ConfigError
from baton.engine.layout.layout import RecurrentShape
from baton.engine.layout.shards import SubBlock, length
from baton.engine.models.fields import Fields
from baton.engine.models.layers.linear import ColumnLinear, RowLinear
from baton.engine.models.layers.norm import SharedGroupNorm
from baton.engine.models.recurrent_layer import Commit
from baton.engine.models.scope import Scope
from baton.engine.models.step import Step
from baton.kernels.mamba2 import Mamba2Layers, Mamba2Weights


@dataclass(frozen=True)
class Mamba2Fields:
    """The names of a mixer's sizes in config.json. The defaults are Granite's and Bamba's."""

    heads: str = "mamba_n_heads"
    head_dim: str = "mamba_d_head"
    groups: str = "mamba_n_groups"
    d_state: str = "mamba_d_state"
    width: str = "mamba_d_conv"
    chunk_size: str = "mamba_chunk_size"
    conv_bias: str = "mamba_conv_bias"
    proj_bias: str = "mamba_proj_bias"
    out_bias: str | None = None  # None: the two projections have biases, or neither has
    expand: str | None = "mamba_expand"  # None: nothing but the heads says how wide the mixer is
    inner: str | None = None  # a field that, where it is given, says it in place of `expand`

    def read_inner(self, fields: Fields, hidden: int) -> tuple[int, str]:
        """Read the mixer's width, and the name of the field that gives it."""
        if self.inner is not None and fields.has(self.inner):
            return fields.integer(self.inner), self.inner
        if self.expand is not None:
            return fields.integer(self.expand, 2) * hidden, f"{self.expand} x hidden_size"
        width = fields.integer(self.heads) * fields.integer(self.head_dim)
        return width, f"{self.heads} x {self.head_dim}"


_COMMON_FIELDS = Mamba2Fields()


@dataclass(frozen=True)
class Mamba2Shape:
    """The sizes of one mixer. Set by the family's config reader."""

    hidden: int
    heads: int
    head_dim: int
    groups: int  # head h uses B and C of group h // (heads // groups)
    d_state: int
    width: int  # taps of the convolution
    chunk_size: int
    conv_bias: bool
    proj_bias: bool
    out_bias: bool
    norm_eps: float
    dt_limit: tuple[float, float]  # clamp of dt after softplus, at prefill and decode alike
    normed: bool = True  # the gated output goes through a norm
    gate_last: bool = False  # it is normed before it is gated

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def head_block(self) -> SubBlock:
        """The heads, as ranks divide them."""
        return SubBlock("Mamba heads", self.heads)

    @property
    def inner_block(self) -> SubBlock:
        """The heads' channels."""
        return replace(self.head_block, width=self.head_dim)

    @property
    def conv_blocks(self) -> tuple[SubBlock, SubBlock, SubBlock]:
        """Channels of x, B and C, which the convolution sees as one. Where there are fewer groups
        than ranks, several ranks keep one.
        """
        return (
            self.inner_block,
            SubBlock("Mamba groups (B)", self.groups, self.d_state, shared=True),
            SubBlock("Mamba groups (C)", self.groups, self.d_state, shared=True),
        )

    @property
    def state(self) -> RecurrentShape:
        """The state of one sequence."""
        return RecurrentShape(
            conv=(length(self.conv_blocks), self.width - 1),
            ssm=(self.heads, self.head_dim, self.d_state),
            fused=self.conv_blocks,
            gates=self.heads,
        )

    @staticmethod
    def read(
        fields: Fields, hidden: int, norm_eps: float, names: Mamba2Fields = _COMMON_FIELDS
    ) -> "Mamba2Shape":
        """Read the sizes from the fields called `names`."""
        heads = fields.integer(names.heads)
        inner, said = names.read_inner(fields, hidden)
        if fields.raw.get(names.head_dim) in (None, "auto"):
            head_dim = inner // heads
        else:
            head_dim = fields.integer(names.head_dim)
        if heads * head_dim != inner:
            raise ConfigError(
                f"{fields.where}: {names.heads} x {names.head_dim} ({heads} x {head_dim}) should "
                f"be {said} ({inner})"
            )
        groups = fields.integer(names.groups, 1)
        if heads % groups:
            raise ConfigError(
                f"{fields.where}: {names.heads} ({heads}) should be a multiple of "
                f"{names.groups} ({groups})"
            )
        return Mamba2Shape(
            hidden=hidden,
            heads=heads,
            head_dim=head_dim,
            groups=groups,
            d_state=fields.integer(names.d_state),
            width=fields.integer(names.width, 4, minimum=2),
            chunk_size=fields.integer(names.chunk_size, 256),
            conv_bias=fields.flag(names.conv_bias, True),
            proj_bias=fields.flag(names.proj_bias, False),
            out_bias=fields.flag(names.out_bias or names.proj_bias, False),
            norm_eps=norm_eps,
            dt_limit=read_dt_limit(fields),
        )


def read_dt_limit(fields: Fields) -> tuple[float, float]:
    """Read `time_step_limit`; transformers 5 writes infinity as an object, others as Infinity.

    A bound that is null, as JSON tools write infinity, does not limit: transformers gives it to
    `torch.clamp`, which takes None so. Raises ConfigError for what limits nothing in order.
    """
    value = fields.raw.get("time_step_limit")
    if value is None:
        return (0.0, math.inf)
    try:
        low, high = value
        limit = (_dt_bound(low, 0.0), _dt_bound(high, math.inf))
    except (TypeError, ValueError, KeyError) as error:
        raise ConfigError(
            f"{fields.where}: time_step_limit should be two numbers; got {value!r}"
        ) from error
    if not (limit[0] <= limit[1] and limit[0] < math.inf and limit[1] > 0):  # NaN is in no order
        raise ConfigError(
            f"{fields.where}: time_step_limit should be a least and a largest time step, the "
            f"second above 0 and not below the first; got {value!r}"
        )
    return limit


def _dt_bound(bound: object, absent: float) -> float:
    """Return one bound of `time_step_limit`; absent: where it is null."""
    if isinstance(bound, dict):
        bound = bound["__float__"]
    if bound is None:
        return absent
    if isinstance(bound, bool) or not isinstance(bound, int | float | str):
        raise TypeError(f"{bound!r} is no number")
    return float(bound)


def _decay(a_log: Tensor) -> Tensor:
    return a_log.exp().neg()


class Mamba2Mixer:
    """in_proj -> [z | x B C | dt]; conv over [x B C]; scan; norm(y * silu(z)) a group; out_proj.

    In some models the gate comes after the norm, or there is no norm.
    """

    mixes = True

    def __init__(self, scope: Scope, shape: Mamba2Shape, index: int) -> None:
        """index: which of the model's recurrent layers this is (its place in a state slot)."""
        self.index = index
        self.kernels = scope.kernels
        in_rows = (shape.inner_block, *shape.conv_blocks, shape.head_block)
        self.in_proj = ColumnLinear(scope, {"in_proj": in_rows}, shape.hidden, shape.proj_bias)
        shared = shape.normed and scope.shard.size > shape.groups
        self.weights = _load(scope, replace(shape, normed=False) if shared else shape)
        self.norm = _shared_norm(scope, shape) if shared else None
        self.out_proj = RowLinear(
            scope, "out_proj", shape.hidden, shape.inner_block, shape.out_bias
        )
        scope.recurrent.append(self)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        zxbcdt = self.in_proj(x)
        conv_pool, state_pool = step.states.conv[self.index], step.ssm(self.index)
        done = step.decode_tokens
        parts = []
        if step.decode is not None:
            rows = step.decode
            given = (self.weights, zxbcdt[:done], conv_pool, state_pool, rows.read_slots)
            if rows.kept is None:
                y = self.kernels.mamba2_step(*given, rows.write_slots, rows.has_initial)
            else:
                kept = rows.kept[self.index]
                y = self.kernels.mamba2_verify(*given, rows.has_initial, kept, rows.nodes)
            parts.append(y)
        if step.prefill is not None:
            mix = step.prefill.mamba2
            parts.append(mix(self.weights, zxbcdt[done:], conv_pool, state_pool))
        step.state_written(self.index)
        mixed = parts[0] if len(parts) == 1 else torch.cat(parts)
        return self.out_proj(mixed if self.norm is None else self.norm(mixed))

    @classmethod
    def commit_of(cls, layers: "Sequence[Mamba2Mixer]") -> Commit:
        """See `RecurrentLayer`. The layers' weights become views of those of all."""
        together = Mamba2Layers.of([layer.weights for layer in layers])
        for layer, weights in zip(layers, together.each, strict=True):
            layer.weights = weights
        return partial(layers[0].kernels.mamba2_commit, together)


def _shared_norm(scope: Scope, shape: Mamba2Shape) -> SharedGroupNorm:
    """Build the norm of groups that several ranks have heads of, after the kernel's gate."""
    if shape.gate_last:
        raise ConfigError(
            f"Mamba groups ({shape.groups}) cannot be shared by {scope.shard.size} ranks: the norm "
            f"comes before the gate; expected a multiple of {scope.shard.size}"
        )
    return SharedGroupNorm(scope, "norm", shape.inner_block, shape.conv_blocks[1], shape.norm_eps)


def _load(scope: Scope, shape: Mamba2Shape) -> Mamba2Weights:
    """Load this rank's part of everything but the projections."""
    blocks, block, fp32 = shape.conv_blocks, (shape.head_block,), torch.float32
    channels, heads = length(blocks), (shape.heads,)
    conv = scope.part("conv1d.weight", (channels, 1, shape.width), blocks, dtype=fp32)
    bias = None
    if shape.conv_bias:
        bias = scope.part("conv1d.bias", (channels,), blocks, dtype=fp32)
    norm = None
    if shape.normed:
        norm = scope.part("norm.weight", (shape.inner,), (shape.inner_block,), dtype=fp32)
    return Mamba2Weights(
        conv_weight=conv.squeeze(1),
        conv_bias=bias,
        A=scope.part("A_log", heads, block, dtype=fp32, then=_decay),
        D=scope.part("D", heads, block, dtype=fp32),
        dt_bias=scope.part("dt_bias", heads, block, dtype=fp32),
        norm_weight=norm,
        head_dim=shape.head_dim,
        groups=scope.shard.part(blocks[1]),
        d_state=shape.d_state,
        eps=shape.norm_eps,
        dt_limit=shape.dt_limit,
        gate_last=shape.gate_last,
    )
