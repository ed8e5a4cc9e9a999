"""A Mamba-2 mixer between its two projections: a decode step, and prompts."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from baton.kernels.chunks import ChunkIndex, RaggedRows, SnapshotPlan
from baton.kernels.conv1d import (
    ConvIndex,
    causal_conv1d_update,
    causal_conv1d_varlen,
    conv_index,
)
from baton.kernels.host_plan import HostPlan
from baton.kernels.layer_stack import layer_stack
from baton.kernels.native.arguments import DTYPES
from baton.kernels.native.recorder import Native
from baton.kernels.norm import gated_rms_norm
from baton.kernels.prompt_plan import ChunkedPromptPlan, plan_chunked_prompts
from baton.kernels.ssd import block_size, ssd_index, ssd_prefill
from baton.kernels.state_update import selective_state_update

LARGEST_STEP = math.ldexp(1.0, 127)  # stands for no limit: finite, and a float32


@dataclass(frozen=True)
class Mamba2Weights:
    """The weights of a mixer other than its projections. H heads of P channels, G groups, state
    size N; C = H P + 2 G N channels of the convolution, W taps. All tensors are float32.

    conv_weight: [C, W]; the last column multiplies the newest input
    conv_bias:   [C] or None
    A, D, dt_bias: [H]; A is negative
    norm_weight: [H P]; the norm is taken over each group's channels. None: there is no norm
    eps:         of the norm
    dt_limit:    (low, high) clamp of dt after softplus
    gate_last:   norm(y) * silu(z), not norm(y * silu(z)); there is a norm
    """

    conv_weight: Tensor
    conv_bias: Tensor | None
    A: Tensor
    D: Tensor
    dt_bias: Tensor
    norm_weight: Tensor | None
    head_dim: int
    groups: int
    d_state: int
    eps: float
    dt_limit: tuple[float, float]
    gate_last: bool = False

    @property
    def heads(self) -> int:
        return self.A.shape[0]

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def splits(self) -> list[int]:
        """Return the columns of z, of the convolution's input [x | B | C], and of dt."""
        return [self.inner, self.conv_weight.shape[0], self.heads]

    def split_conv(self, conv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split [T, C] into x [T, H, P], B and C [T, G, N]."""
        state = self.groups * self.d_state
        x, B, C = torch.split(conv, [self.inner, state, state], dim=-1)
        return (
            x.view(-1, self.heads, self.head_dim),
            B.view(-1, self.groups, self.d_state),
            C.view(-1, self.groups, self.d_state),
        )

    def gated_norm(self, y: Tensor, z: Tensor) -> Tensor:
        """Gate, and norm a group where there is one: y, z [T, H P] float -> [T, H P], dtype of y"""
        if self.norm_weight is None:
            return (y.float() * F.silu(z.float())).to(y.dtype)
        group = self.inner // self.groups
        return gated_rms_norm(y, z, self.norm_weight, self.eps, group, self.gate_last)


@dataclass(frozen=True)
class Mamba2Layers:
    """The weights of L mixers of equal sizes, and in one tensor those that advance their states.

    each:        [L], views of the tensors below and whatever else the mixers have
    conv_weight: [L, C, W] float32
    conv_bias:   [L, C] float32 or None
    A, dt_bias:  [L, H] float32
    """

    each: tuple[Mamba2Weights, ...]
    conv_weight: Tensor
    conv_bias: Tensor | None
    A: Tensor
    dt_bias: Tensor

    @staticmethod
    def of(each: Sequence[Mamba2Weights]) -> "Mamba2Layers":
        """Copy the weights into one tensor a kind."""
        taps = layer_stack([weights.conv_weight for weights in each])
        biases = [weights.conv_bias for weights in each if weights.conv_bias is not None]
        bias = layer_stack(biases) if biases else None
        A = layer_stack([weights.A for weights in each])
        steps = layer_stack([weights.dt_bias for weights in each])
        views = tuple(
            replace(
                weights,
                conv_weight=taps[layer],
                conv_bias=None if bias is None else bias[layer],
                A=A[layer],
                dt_bias=steps[layer],
            )
            for layer, weights in enumerate(each)
        )
        return Mamba2Layers(views, taps, bias, A, steps)


def mamba2_step(
    weights: Mamba2Weights,
    zxbcdt: Tensor,
    conv_pool: Tensor,
    ssm_pool: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    has_initial: Tensor | None = None,
) -> Tensor:
    """Implement `Kernels.mamba2_step` in torch."""
    z, conv_input, dt = torch.split(zxbcdt, weights.splits, dim=-1)
    slots = (read_slots, write_slots)
    conv = causal_conv1d_update(
        conv_input, weights.conv_weight, weights.conv_bias, conv_pool, *slots, has_initial
    )
    x, B, C = weights.split_conv(conv)
    y = selective_state_update(
        ssm_pool, *slots, x, dt, weights.A, B, C, weights.D, weights.dt_bias, weights.dt_limit,
        has_initial,
    )  # fmt: skip
    return weights.gated_norm(y.flatten(1), z)


def mamba2_step_native(
    native: Native,
    weights: Mamba2Weights,
    zxbcdt: Tensor,
    conv_pool: Tensor,
    ssm_pool: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    has_initial: Tensor | None = None,
) -> Tensor:
    """Implement `Kernels.mamba2_step` natively, in one call, for float32 zxbcdt; pools in float32
    or bfloat16."""
    rows = zxbcdt.shape[0]
    channels, width = weights.conv_weight.shape
    convolved = native.empty(rows, channels)
    y = native.empty(rows, weights.inner)
    bias = weights.conv_bias
    low, high = weights.dt_limit
    native.call(
        "mamba2_step",
        zxbcdt=zxbcdt,
        conv_weight=weights.conv_weight,
        conv_bias=bias,
        A=weights.A,
        D=weights.D,
        dt_bias=weights.dt_bias,
        norm_weight=weights.norm_weight,
        conv_pool=conv_pool,
        ssm_pool=ssm_pool,
        read_slots=read_slots,
        write_slots=write_slots,
        has_initial=has_initial,
        convolved=convolved,
        y=y,
        rows=rows,
        stride=zxbcdt.stride(0),
        heads=weights.heads,
        head_dim=weights.head_dim,
        groups=weights.groups,
        d_state=weights.d_state,
        width=width,
        conv_stride=conv_pool.stride(0),
        ssm_stride=ssm_pool.stride(0),
        conv_dtype=DTYPES[conv_pool.dtype],
        ssm_dtype=DTYPES[ssm_pool.dtype],
        gate_last=int(weights.gate_last),
        dt_low=low,
        dt_high=min(high, LARGEST_STEP),
        eps=weights.eps,
    )
    return y


# What a plan makes of one layer's weights, zxbcdt [T, H P + C + H], conv_pool and ssm_pool (as in
# mamba2_step): the mixer's output [T, H P], dtype of zxbcdt.
Mamba2Prefill = Callable[[Mamba2Weights, Tensor, Tensor, Tensor], Tensor]
# The same for the rows of a batch, once they are on the device.
Mamba2Rows = Callable[[RaggedRows], Mamba2Prefill]


def plan_mamba2_prefill(
    cu_seqlens_host: Sequence[int],
    prefix_lens_host: Sequence[int],
    width: int,
    chunk_size: int,
    snapshots: SnapshotPlan | None,
) -> HostPlan[Mamba2Rows]:
    """Implement `Kernels.plan_mamba2_prefill` in torch."""
    conv = conv_index(cu_seqlens_host, prefix_lens_host, width, snapshots)
    scan = ssd_index(cu_seqlens_host, prefix_lens_host, chunk_size, snapshots)

    def build(parts: Iterator[Tensor]) -> Mamba2Rows:
        return partial(_prefill_of, conv.build(parts), scan.build(parts), chunk_size)

    return HostPlan((*conv.lists, *scan.lists), build)


def _prefill_of(
    conv_plan: ConvIndex, scan_plan: ChunkIndex, chunk_size: int, rows: RaggedRows
) -> Mamba2Prefill:
    lens = (rows.cu_seqlens, rows.cu_seqlens_host, rows.prefix_lens_host)
    slots = (rows.read_slots, rows.write_slots, rows.has_initial)

    def prefill(
        weights: Mamba2Weights, zxbcdt: Tensor, conv_pool: Tensor, ssm_pool: Tensor
    ) -> Tensor:
        z, conv_input, dt = torch.split(zxbcdt, weights.splits, dim=-1)
        taps, bias = weights.conv_weight, weights.conv_bias
        conv = causal_conv1d_varlen(
            conv_input, taps, bias, *lens, conv_pool, *slots, index=conv_plan
        )
        x, B, C = weights.split_conv(conv)
        y = ssd_prefill(
            x, dt, weights.A, B, C, weights.D, weights.dt_bias, weights.dt_limit, *lens,
            chunk_size, ssm_pool, *slots, index=scan_plan,
        )  # fmt: skip
        return weights.gated_norm(y.flatten(1), z)

    return prefill


def plan_mamba2_prefill_native(
    native: Native,
    cu_seqlens_host: Sequence[int],
    prefix_lens_host: Sequence[int],
    width: int,
    chunk_size: int,
    snapshots: SnapshotPlan | None,
) -> HostPlan[Mamba2Rows]:
    """Implement `Kernels.plan_mamba2_prefill` natively, in one call a layer, for float32 zxbcdt;
    pools in float32 or bfloat16."""
    lens = (cu_seqlens_host, prefix_lens_host)
    plan = plan_chunked_prompts(*lens, block_size(chunk_size), snapshots)
    return HostPlan(
        plan.lists, lambda parts: partial(_native_prefill_of, native, plan.build(parts))
    )


def _native_prefill_of(native: Native, plan: ChunkedPromptPlan, rows: RaggedRows) -> Mamba2Prefill:
    prompts = plan.prompts

    def prefill(
        weights: Mamba2Weights, zxbcdt: Tensor, conv_pool: Tensor, ssm_pool: Tensor
    ) -> Tensor:
        tokens = zxbcdt.shape[0]
        channels, width = weights.conv_weight.shape
        convolved = native.empty(tokens, channels)
        scores = native.empty(plan.chunks, weights.groups, plan.chunk, plan.chunk)
        y = native.empty(tokens, weights.inner)
        bias, norm = weights.conv_bias, weights.norm_weight
        low, high = weights.dt_limit
        native.call(
            "mamba2_prefill",
            zxbcdt=zxbcdt,
            conv_weight=weights.conv_weight,
            conv_bias=bias,
            A=weights.A,
            D=weights.D,
            dt_bias=weights.dt_bias,
            norm_weight=norm,
            conv_pool=conv_pool,
            ssm_pool=ssm_pool,
            read_slots=rows.read_slots,
            write_slots=rows.write_slots,
            has_initial=rows.has_initial,
            starts=prompts.starts,
            row_chunks=plan.row_chunks,
            chunk_starts=plan.chunk_starts,
            chunk_slots=plan.chunk_slots,
            row_snapshots=prompts.row_snapshots,
            snapshot_ends=prompts.snapshot_ends,
            snapshot_slots=prompts.snapshot_slots,
            convolved=convolved,
            scores=scores,
            y=y,
            rows=prompts.rows,
            tokens=tokens,
            chunks=plan.chunks,
            chunk=plan.chunk,
            stride=zxbcdt.stride(0),
            heads=weights.heads,
            head_dim=weights.head_dim,
            groups=weights.groups,
            d_state=weights.d_state,
            width=width,
            conv_stride=conv_pool.stride(0),
            ssm_stride=ssm_pool.stride(0),
            conv_dtype=DTYPES[conv_pool.dtype],
            ssm_dtype=DTYPES[ssm_pool.dtype],
            gate_last=int(weights.gate_last),
            dt_low=low,
            dt_high=min(high, LARGEST_STEP),
            eps=weights.eps,
        )
        return y

    return prefill
