"""A Mamba-2 mixer between its two projections on a GPU; see baton.kernels.mamba2."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from baton.kernels.chunks import SnapshotPlan
from baton.kernels.host_plan import HostPlan
from baton.kernels.mamba2 import Mamba2Prefill, Mamba2Rows, Mamba2Weights
from baton.kernels.triton.conv1d import (
    ConvTiles,
    causal_conv1d_prompts,
    causal_conv1d_update,
    conv_tiles,
)
from baton.kernels.triton.norm import gated_norm
from baton.kernels.triton.prompt_chunks import PromptChunks, prompt_chunks
from baton.kernels.triton.ssd import chunk_tokens, ssd_prompts
from baton.kernels.triton.state_update import selective_state_update


def mamba2_step(
    weights: Mamba2Weights,
    zxbcdt: Tensor,
    conv_pool: Tensor,
    ssm_pool: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    has_initial: Tensor | None = None,
) -> Tensor:
    """Implement `Kernels.mamba2_step`, in three launches: the heads of a group share its B and
    C, and its norm."""
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
    return norm_of_states(weights, y.flatten(1), z)


def plan_mamba2_prefill(
    cu_seqlens_host: Sequence[int],
    prefix_lens_host: Sequence[int],
    width: int,
    chunk_size: int,
    snapshots: SnapshotPlan | None,
) -> HostPlan[Mamba2Rows]:
    """Implement `Kernels.plan_mamba2_prefill`."""
    lens = (cu_seqlens_host, prefix_lens_host)
    tiles = conv_tiles(*lens, snapshots)
    chunks = prompt_chunks(*lens, chunk_tokens(chunk_size), snapshots)

    def build(parts: Iterator[Tensor]) -> Mamba2Rows:
        tiles_of, chunks_of = tiles.build(parts), chunks.build(parts)
        return lambda rows: _prefill_of(tiles_of(rows), chunks_of(rows))

    return HostPlan((*tiles.lists, *chunks.lists), build)


def _prefill_of(tiles: ConvTiles, chunks: PromptChunks) -> Mamba2Prefill:
    def prefill(
        weights: Mamba2Weights, zxbcdt: Tensor, conv_pool: Tensor, ssm_pool: Tensor
    ) -> Tensor:
        z, conv_input, dt = torch.split(zxbcdt, weights.splits, dim=-1)
        conv = causal_conv1d_prompts(
            conv_input, weights.conv_weight, weights.conv_bias, conv_pool, tiles
        )
        x, B, C = weights.split_conv(conv)
        y = ssd_prompts(
            x, dt, weights.A, B, C, weights.D, weights.dt_bias, weights.dt_limit, ssm_pool, chunks
        )
        return norm_of_states(weights, y.flatten(1), z)

    return prefill


def norm_of_states(weights: Mamba2Weights, y: Tensor, z: Tensor) -> Tensor:
    """Compute baton.kernels.mamba2.Mamba2Weights.gated_norm."""
    group = weights.inner // weights.groups
    return gated_norm(y, z, weights.norm_weight, weights.eps, group, weights.gate_last)
