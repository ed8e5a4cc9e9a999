"""A Mamba-2 mixer between its two projections: a decode step, and prompts."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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
from baton.kernels.native import signatures
from baton.kernels.native.recorder import Native
from baton.kernels.norm import gated_rms_norm
from baton.kernels.prompt_plan import ChunkedPromptPlan, plan_chunked_prompts
from baton.kernels.ssd import block_size, ssd_index, ssd_prefill
from baton.kernels.state_update import selective_state_update


@dataclass(frozen=True)
class Mamba2Weights:
    """What a mixer has beside its projections. H heads of P channels, G groups, state size N;
    C = H P + 2 G N channels of the convolution, W taps. All tensors are float32.

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
        """Columns of z, of the convolution's input [x | B | C], and of dt."""
        return [self.inner, self.conv_weight.shape[0], self.heads]

    def split_conv(self, conv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[T, C] -> x [T, H, P], B and C [T, G, N]"""
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


def mamba2_step(
    weights: Mamba2Weights,
    zxbcdt: Tensor,
    conv_pool: Tensor,
    ssm_pool: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    has_initial: Tensor | None = None,
) -> Tensor:
    """Advance each row by one token: convolution, state, gate and norm.

    zxbcdt:    [B, H P + C + H] float, the input projection: z, then x B C, then dt (raw)
    conv_pool: [slots, C, W - 1] float, strided over slots; written in place
    ssm_pool:  [slots, H, P, N] float, strided over slots; written in place
    read_slots, write_slots: [B] int64, state slots; 0 for padding rows
    has_initial: [B] bool; False starts from zeros, whatever the read slot holds. None: all True
    returns    [B, H P], dtype of zxbcdt; computed in float32
    """
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
    """The same in one call, for float32 zxbcdt; pools in float32 or bfloat16."""
    rows = zxbcdt.shape[0]
    channels, width = weights.conv_weight.shape
    convolved = native.empty(rows, channels)
    y = native.empty(rows, weights.inner)
    bias = weights.conv_bias
    low, high = weights.dt_limit
    native.call(
        signatures.Mamba2Step(
            zxbcdt.data_ptr(),
            weights.conv_weight.data_ptr(),
            None if bias is None else bias.data_ptr(),
            weights.A.data_ptr(),
            weights.D.data_ptr(),
            weights.dt_bias.data_ptr(),
            None if weights.norm_weight is None else weights.norm_weight.data_ptr(),
            conv_pool.data_ptr(),
            ssm_pool.data_ptr(),
            read_slots.data_ptr(),
            write_slots.data_ptr(),
            None if has_initial is None else has_initial.data_ptr(),
            convolved.data_ptr(),
            y.data_ptr(),
            rows,
            zxbcdt.stride(0),
            weights.heads,
            weights.head_dim,
            weights.groups,
            weights.d_state,
            width,
            conv_pool.stride(0),
            ssm_pool.stride(0),
            signatures.DTYPES[conv_pool.dtype],
            signatures.DTYPES[ssm_pool.dtype],
            int(weights.gate_last),
            low,
            min(high, _LARGEST_STEP),
            weights.eps,
        )
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
    """Plan the prompts of a batch once, for all layers: convolution, scan, gate and norm.

    cu_seqlens_host: [B + 1], packed token where each row begins
    prefix_lens_host: [B], absolute depth of each row's first token
    width:      taps of the convolution
    chunk_size: the model's; chunks are cut at its absolute multiples (or finer)
    snapshots:  states to keep at multiples of `chunk_size` or at a row's end, in slots of their own
    """
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
    """The same in one call a layer, for float32 zxbcdt; pools in float32 or bfloat16."""
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
            signatures.Mamba2Prefill(
                zxbcdt.data_ptr(),
                weights.conv_weight.data_ptr(),
                None if bias is None else bias.data_ptr(),
                weights.A.data_ptr(),
                weights.D.data_ptr(),
                weights.dt_bias.data_ptr(),
                None if norm is None else norm.data_ptr(),
                conv_pool.data_ptr(),
                ssm_pool.data_ptr(),
                rows.read_slots.data_ptr(),
                rows.write_slots.data_ptr(),
                rows.has_initial.data_ptr(),
                prompts.starts.data_ptr(),
                plan.row_chunks.data_ptr(),
                plan.chunk_starts.data_ptr(),
                plan.chunk_slots.data_ptr(),
                prompts.row_snapshots.data_ptr(),
                prompts.snapshot_ends.data_ptr(),
                prompts.snapshot_slots.data_ptr(),
                convolved.data_ptr(),
                scores.data_ptr(),
                y.data_ptr(),
                prompts.rows,
                tokens,
                plan.chunks,
                plan.chunk,
                zxbcdt.stride(0),
                weights.heads,
                weights.head_dim,
                weights.groups,
                weights.d_state,
                width,
                conv_pool.stride(0),
                ssm_pool.stride(0),
                signatures.DTYPES[conv_pool.dtype],
                signatures.DTYPES[ssm_pool.dtype],
                int(weights.gate_last),
                low,
                min(high, _LARGEST_STEP),
                weights.eps,
            )
        )
        return y

    return prefill


_LARGEST_STEP = math.ldexp(1.0, 127)  # stands for no limit: finite, and a float32
