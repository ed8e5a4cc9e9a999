"""A gated-delta mixer between its projections: a decode step, and prompts."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from baton.kernels.chunks import ChunkIndex, RaggedRows, SnapshotPlan, chunk_index
from baton.kernels.conv1d import (
    ConvIndex,
    causal_conv1d_update,
    causal_conv1d_varlen,
    conv_index,
)
from baton.kernels.elementwise import sigmoid
from baton.kernels.gated_delta import CHUNK, gated_delta_prefill, gated_delta_update
from baton.kernels.host_plan import HostPlan
from baton.kernels.layer_stack import layer_stack
from baton.kernels.native.arguments import DTYPES
from baton.kernels.native.recorder import Native
from baton.kernels.norm import rms_norm
from baton.kernels.prompt_plan import ChunkedPromptPlan, plan_chunked_prompts
from baton.kernels.ssd import discretise

_NO_LIMIT = (0.0, float("inf"))


@dataclass(frozen=True)
class DeltaWeights:
    """The weights of a mixer other than its projections. Hk heads of queries and keys of K
    channels, Hv heads of values of V; C = 2 Hk K + Hv V channels of the convolution, W taps. All
    are float32.

    conv_weight: [C, W]; the last column multiplies the newest input
    A:           [Hv], negative
    dt_bias:     [Hv]; or [Hv K]: decays are one a key channel (KDA), and Hv = Hk
    norm_weight: [V]; the norm is taken over each head, then gated
    eps:         of the norm
    silu_gate:   norm(o) * silu(z) (gated delta nets), not norm(o) * sigmoid(z) (KDA)
    """

    conv_weight: Tensor
    A: Tensor
    dt_bias: Tensor
    norm_weight: Tensor
    key_heads: int
    key_dim: int
    eps: float
    silu_gate: bool

    @property
    def heads(self) -> int:
        return self.A.shape[0]

    @property
    def value_dim(self) -> int:
        return self.norm_weight.shape[0]

    def split_conv(self, conv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split [T, C] into q and k [T, Hk, K] and v [T, Hv, V]."""
        keys = self.key_heads * self.key_dim
        q, k, v = torch.split(conv, [keys, keys, self.heads * self.value_dim], dim=-1)
        shape = (-1, self.key_heads, self.key_dim)
        return q.view(shape), k.view(shape), v.view(-1, self.heads, self.value_dim)

    def log_decay(self, a: Tensor) -> Tensor:
        """Compute A softplus(a + dt_bias): [T, Hv] or [T, Hv K] float -> [T, Hv] or [T, Hv, K]
        float32."""
        step = discretise(a, self.dt_bias, _NO_LIMIT)
        if step.shape[-1] == self.heads:
            return step * self.A
        return step.view(-1, self.heads, self.key_dim) * self.A[:, None]

    def gated_norm(self, o: Tensor, z: Tensor) -> Tensor:
        """Normalise each head and gate it: o [T, Hv, V], z [T, Hv V] float -> [T, Hv V], dtype of
        o."""
        gate = sigmoid(z) * z.float() if self.silu_gate else sigmoid(z)
        return (rms_norm(o.float(), self.norm_weight, self.eps).flatten(1) * gate).to(o.dtype)


@dataclass(frozen=True)
class DeltaLayers:
    """The weights of L mixers of equal sizes, and in one tensor those that advance their states.

    each:        [L], views of the tensors below and whatever else the mixers have
    conv_weight: [L, C, W] float32
    A:           [L, Hv] float32
    dt_bias:     [L, Hv] or [L, Hv K] float32
    """

    each: tuple[DeltaWeights, ...]
    conv_weight: Tensor
    A: Tensor
    dt_bias: Tensor

    @staticmethod
    def of(each: Sequence[DeltaWeights]) -> "DeltaLayers":
        """Copy the weights into one tensor a kind."""
        taps = layer_stack([weights.conv_weight for weights in each])
        A = layer_stack([weights.A for weights in each])
        steps = layer_stack([weights.dt_bias for weights in each])
        views = tuple(
            replace(weights, conv_weight=taps[layer], A=A[layer], dt_bias=steps[layer])
            for layer, weights in enumerate(each)
        )
        return DeltaLayers(views, taps, A, steps)


@dataclass(frozen=True)
class DeltaInputs:
    """The outputs of a mixer's projections for T tokens; floats that may be strided over tokens."""

    qkv: Tensor  # [T, C], before the convolution
    z: Tensor  # [T, Hv V], the gate of the output
    b: Tensor  # [T, Hv]; beta = sigmoid(b)
    a: Tensor  # [T, Hv] or [T, Hv K], as dt_bias is

    def tokens(self, which: slice) -> "DeltaInputs":
        return DeltaInputs(self.qkv[which], self.z[which], self.b[which], self.a[which])


def gated_delta_step(
    weights: DeltaWeights,
    inputs: DeltaInputs,
    conv_pool: Tensor,
    state_pool: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    has_initial: Tensor | None = None,
) -> Tensor:
    """Implement `Kernels.gated_delta_step` in torch."""
    slots = (read_slots, write_slots)
    conv = causal_conv1d_update(
        inputs.qkv, weights.conv_weight, None, conv_pool, *slots, has_initial
    )
    q, k, v = weights.split_conv(conv)
    g, beta = weights.log_decay(inputs.a), sigmoid(inputs.b)
    o = gated_delta_update(q, k, v, g, beta, state_pool, *slots, has_initial)
    return weights.gated_norm(o, inputs.z)


def gated_delta_step_native(
    native: Native,
    weights: DeltaWeights,
    inputs: DeltaInputs,
    conv_pool: Tensor,
    state_pool: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    has_initial: Tensor | None = None,
) -> Tensor:
    """Implement `Kernels.gated_delta_step` natively, in one call, for float32 inputs; pools in
    float32 or bfloat16."""
    rows = inputs.qkv.shape[0]
    channels, width = weights.conv_weight.shape
    convolved = native.empty(rows, channels)
    y = native.empty(rows, weights.heads * weights.value_dim)
    native.call(
        "delta_step",
        qkv=inputs.qkv,
        z=inputs.z,
        b=inputs.b,
        a=inputs.a,
        conv_weight=weights.conv_weight,
        A=weights.A,
        dt_bias=weights.dt_bias,
        norm_weight=weights.norm_weight,
        conv_pool=conv_pool,
        state_pool=state_pool,
        read_slots=read_slots,
        write_slots=write_slots,
        has_initial=has_initial,
        convolved=convolved,
        y=y,
        rows=rows,
        qkv_stride=inputs.qkv.stride(0),
        z_stride=inputs.z.stride(0),
        b_stride=inputs.b.stride(0),
        a_stride=inputs.a.stride(0),
        key_heads=weights.key_heads,
        heads=weights.heads,
        key_dim=weights.key_dim,
        value_dim=weights.value_dim,
        width=width,
        conv_stride=conv_pool.stride(0),
        state_stride=state_pool.stride(0),
        conv_dtype=DTYPES[conv_pool.dtype],
        state_dtype=DTYPES[state_pool.dtype],
        channelwise=int(weights.dt_bias.shape[0] > weights.heads),
        silu_gate=int(weights.silu_gate),
        eps=weights.eps,
    )
    return y


# What a plan makes of one layer's weights, inputs, conv_pool and state_pool (as in
# gated_delta_step): the mixer's output [T, Hv V], dtype of the inputs.
DeltaPrefill = Callable[[DeltaWeights, DeltaInputs, Tensor, Tensor], Tensor]
# The same for the rows of a batch, once they are on the device.
DeltaRows = Callable[[RaggedRows], DeltaPrefill]


def plan_delta_prefill(
    cu_seqlens_host: Sequence[int],
    prefix_lens_host: Sequence[int],
    width: int,
    snapshots: SnapshotPlan | None,
) -> HostPlan[DeltaRows]:
    """Implement `Kernels.plan_delta_prefill` in torch."""
    conv = conv_index(cu_seqlens_host, prefix_lens_host, width, snapshots)
    chunks = chunk_index(cu_seqlens_host, prefix_lens_host, CHUNK, snapshots)

    def build(parts: Iterator[Tensor]) -> DeltaRows:
        return partial(_prefill_of, conv.build(parts), chunks.build(parts))

    return HostPlan((*conv.lists, *chunks.lists), build)


def _prefill_of(conv_plan: ConvIndex, chunks: ChunkIndex, rows: RaggedRows) -> DeltaPrefill:
    lens = (rows.cu_seqlens_host, rows.prefix_lens_host)
    slots = (rows.read_slots, rows.write_slots, rows.has_initial)

    def prefill(
        weights: DeltaWeights, inputs: DeltaInputs, conv_pool: Tensor, state_pool: Tensor
    ) -> Tensor:
        conv = causal_conv1d_varlen(
            inputs.qkv, weights.conv_weight, None, rows.cu_seqlens, *lens, conv_pool, *slots,
            index=conv_plan,
        )  # fmt: skip
        q, k, v = weights.split_conv(conv)
        g, beta = weights.log_decay(inputs.a), sigmoid(inputs.b)
        o = gated_delta_prefill(q, k, v, g, beta, *lens, state_pool, *slots, index=chunks)
        return weights.gated_norm(o, inputs.z)

    return prefill


def plan_delta_prefill_native(
    native: Native,
    cu_seqlens_host: Sequence[int],
    prefix_lens_host: Sequence[int],
    width: int,
    snapshots: SnapshotPlan | None,
) -> HostPlan[DeltaRows]:
    """Implement `Kernels.plan_delta_prefill` natively, in one call a layer, for float32 inputs;
    pools in float32 or bfloat16."""
    plan = plan_chunked_prompts(cu_seqlens_host, prefix_lens_host, CHUNK, snapshots)
    return HostPlan(
        plan.lists, lambda parts: partial(_native_prefill_of, native, plan.build(parts))
    )


def _native_prefill_of(native: Native, plan: ChunkedPromptPlan, rows: RaggedRows) -> DeltaPrefill:
    prompts = plan.prompts

    def prefill(
        weights: DeltaWeights, inputs: DeltaInputs, conv_pool: Tensor, state_pool: Tensor
    ) -> Tensor:
        tokens = inputs.qkv.shape[0]
        y = native.empty(tokens, weights.heads * weights.value_dim)
        native.call(
            "delta_prefill",
            qkv=inputs.qkv,
            z=inputs.z,
            b=inputs.b,
            a=inputs.a,
            conv_weight=weights.conv_weight,
            A=weights.A,
            dt_bias=weights.dt_bias,
            norm_weight=weights.norm_weight,
            conv_pool=conv_pool,
            state_pool=state_pool,
            read_slots=rows.read_slots,
            write_slots=rows.write_slots,
            has_initial=rows.has_initial,
            starts=prompts.starts,
            row_snapshots=prompts.row_snapshots,
            snapshot_ends=prompts.snapshot_ends,
            snapshot_slots=prompts.snapshot_slots,
            row_chunks=plan.row_chunks,
            chunk_starts=plan.chunk_starts,
            chunk_slots=plan.chunk_slots,
            y=y,
            rows=prompts.rows,
            tokens=tokens,
            qkv_stride=inputs.qkv.stride(0),
            z_stride=inputs.z.stride(0),
            b_stride=inputs.b.stride(0),
            a_stride=inputs.a.stride(0),
            key_heads=weights.key_heads,
            heads=weights.heads,
            key_dim=weights.key_dim,
            value_dim=weights.value_dim,
            width=weights.conv_weight.shape[1],
            conv_stride=conv_pool.stride(0),
            state_stride=state_pool.stride(0),
            conv_dtype=DTYPES[conv_pool.dtype],
            state_dtype=DTYPES[state_pool.dtype],
            channelwise=int(weights.dt_bias.shape[0] > weights.heads),
            silu_gate=int(weights.silu_gate),
            eps=weights.eps,
        )
        return y

    return prefill
