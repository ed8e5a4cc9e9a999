"""The Mamba-2 mixer (Dao and Gu, 2024, arXiv:2405.21060)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.engine.errors import ConfigError
from baton.engine.memory.layout import RecurrentShape
from baton.engine.models.fields import Fields
from baton.engine.models.layers.linear import ColumnLinear, RowLinear
from baton.engine.models.scope import Scope
from baton.engine.models.step import DecodeRows, PrefillRows, Step
from baton.kernels.conv1d import causal_conv1d_update, causal_conv1d_varlen
from baton.kernels.norm import gated_rms_norm
from baton.kernels.ssd import ssd_prefill
from baton.kernels.state_update import selective_state_update


@dataclass(frozen=True)
class Mamba2Fields:
    """What config.json calls a mixer's sizes. As they stand, they are Granite's and Bamba's."""

    heads: str = "mamba_n_heads"
    head_dim: str = "mamba_d_head"
    groups: str = "mamba_n_groups"
    d_state: str = "mamba_d_state"
    width: str = "mamba_d_conv"
    chunk_size: str = "mamba_chunk_size"
    conv_bias: str = "mamba_conv_bias"
    proj_bias: str = "mamba_proj_bias"
    expand: str | None = "mamba_expand"  # None: nothing but the heads says how wide the mixer is
    inner: str | None = None  # a field that, where it is given, says it in place of `expand`

    def read_inner(self, fields: Fields, hidden: int) -> tuple[int, str]:
        """The mixer's width, and what says so."""
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
    norm_eps: float
    dt_limit: tuple[float, float]  # clamp of dt after softplus, at prefill and decode alike

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def conv_blocks(self) -> tuple[int, int, int]:
        """Channels of x, B and C, which the convolution sees as one."""
        return (self.inner, self.groups * self.d_state, self.groups * self.d_state)

    @property
    def state(self) -> RecurrentShape:
        return RecurrentShape(
            conv=(sum(self.conv_blocks), self.width - 1),
            ssm=(self.heads, self.head_dim, self.d_state),
        )

    @staticmethod
    def read(
        fields: Fields, hidden: int, norm_eps: float, names: Mamba2Fields = _COMMON_FIELDS
    ) -> "Mamba2Shape":
        """From the fields called `names`."""
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
            norm_eps=norm_eps,
            dt_limit=read_dt_limit(fields),
        )


def read_dt_limit(fields: Fields) -> tuple[float, float]:
    """`time_step_limit`; transformers 5 writes infinity as an object, others as Infinity."""
    value = fields.raw.get("time_step_limit")
    if value is None:
        return (0.0, math.inf)
    try:
        low, high = (
            float(bound["__float__"] if isinstance(bound, dict) else bound) for bound in value
        )
    except (TypeError, ValueError, KeyError) as error:
        raise ConfigError(
            f"{fields.where}: time_step_limit should be two numbers; got {value!r}"
        ) from error
    return (low, high)


def _decay(a_log: Tensor) -> Tensor:
    return a_log.exp().neg()


class Mamba2Mixer:
    """in_proj -> [z | x B C | dt]; conv over [x B C]; scan; norm(y * silu(z)) a group; out_proj."""

    def __init__(self, scope: Scope, shape: Mamba2Shape, index: int) -> None:
        """index: which of the model's recurrent layers this is (its place in a state slot)."""
        self.index = index
        self.chunk_size = shape.chunk_size
        self.dt_limit = shape.dt_limit
        self.eps = shape.norm_eps
        part = scope.shard.part
        self.heads = part(shape.heads, "Mamba heads")
        self.head_dim = shape.head_dim
        self.groups = part(shape.groups, "Mamba groups")
        self.d_state = shape.d_state
        self.inner = self.heads * self.head_dim
        bc = self.groups * self.d_state
        self.splits = [self.inner, self.inner + 2 * bc, self.heads]
        self.conv_splits = [self.inner, bc, bc]

        blocks = shape.conv_blocks
        in_rows = (shape.inner, *blocks, shape.heads)
        self.in_proj = ColumnLinear(scope, {"in_proj": in_rows}, shape.hidden, shape.proj_bias)
        conv = scope.part("conv1d.weight", (sum(blocks), 1, shape.width), blocks)
        self.conv_weight = conv.squeeze(1)  # [channels, width]
        self.conv_bias = (
            scope.part("conv1d.bias", (sum(blocks),), blocks) if shape.conv_bias else None
        )
        heads, fp32 = (shape.heads,), torch.float32
        self.A = scope.part("A_log", heads, heads, dtype=fp32, then=_decay)  # [heads] float32
        self.D = scope.part("D", heads, heads, dtype=fp32)
        self.dt_bias = scope.part("dt_bias", heads, heads, dtype=fp32)
        self.norm_weight = scope.part("norm.weight", (shape.inner,), (shape.inner,))
        self.out_proj = RowLinear(scope, "out_proj", shape.hidden, shape.inner, shape.proj_bias)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        z, conv_input, dt = torch.split(self.in_proj(x), self.splits, dim=-1)
        done = step.decode_tokens
        parts = []
        if step.decode is not None:
            parts.append(self._decode(conv_input[:done], dt[:done], step, step.decode))
        if step.prefill is not None:
            parts.append(self._prefill(conv_input[done:], dt[done:], step, step.prefill))
        y = parts[0] if len(parts) == 1 else torch.cat(parts)
        group = self.inner // self.groups
        normed = gated_rms_norm(y.flatten(1), z, self.norm_weight, self.eps, group, False)
        return self.out_proj(normed)

    def _decode(self, conv_input: Tensor, dt: Tensor, step: Step, rows: DecodeRows) -> Tensor:
        """One token a row: conv_input [rows, channels], dt [rows, heads] -> [rows, heads, P]."""
        x, B, C = self._split(
            causal_conv1d_update(
                conv_input,
                self.conv_weight,
                self.conv_bias,
                step.states.conv[self.index],
                rows.read_slots,
                rows.write_slots,
                rows.has_initial,
            )
        )
        return selective_state_update(
            step.ssm(self.index),
            rows.read_slots,
            rows.write_slots,
            x,
            dt,
            self.A,
            B,
            C,
            self.D,
            self.dt_bias,
            self.dt_limit,
            rows.has_initial,
        )

    def _prefill(self, conv_input: Tensor, dt: Tensor, step: Step, rows: PrefillRows) -> Tensor:
        """Ragged rows: conv_input [T, channels], dt [T, heads] -> [T, heads, P]."""
        x, B, C = self._split(
            causal_conv1d_varlen(
                conv_input,
                self.conv_weight,
                self.conv_bias,
                rows.cu_seqlens,
                rows.cu_seqlens_host,
                rows.prefix_lens_host,
                step.states.conv[self.index],
                rows.read_slots,
                rows.write_slots,
                rows.has_initial,
                index=rows.conv,
            )
        )
        return ssd_prefill(
            x,
            dt,
            self.A,
            B,
            C,
            self.D,
            self.dt_bias,
            self.dt_limit,
            rows.cu_seqlens,
            rows.cu_seqlens_host,
            rows.prefix_lens_host,
            self.chunk_size,
            step.ssm(self.index),
            rows.read_slots,
            rows.write_slots,
            rows.has_initial,
            index=rows.scan,
        )

    def _split(self, conv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[T, channels] -> x [T, heads, P], B and C [T, groups, d_state]."""
        x, B, C = torch.split(conv, self.conv_splits, dim=-1)
        return (
            x.view(-1, self.heads, self.head_dim),
            B.view(-1, self.groups, self.d_state),
            C.view(-1, self.groups, self.d_state),
        )
