"""A gated-delta mixer between its projections on a GPU; see baton.kernels.delta_mixer."""

from collections.abc import Iterator, Sequence

from torch import Tensor

from baton.kernels.chunks import SnapshotPlan
from baton.kernels.delta_mixer import DeltaInputs, DeltaPrefill, DeltaRows, DeltaWeights
from baton.kernels.gated_delta import CHUNK
from baton.kernels.host_plan import HostPlan
from baton.kernels.triton.conv1d import (
    ConvTiles,
    causal_conv1d_prompts,
    causal_conv1d_update,
    conv_tiles,
)
from baton.kernels.triton.delta_rule import gated_delta_prompts
from baton.kernels.triton.delta_update import gated_delta_update
from baton.kernels.triton.norm import gated_norm
from baton.kernels.triton.prompt_chunks import PromptChunks, prompt_chunks


def gated_delta_step(
    weights: DeltaWeights,
    inputs: DeltaInputs,
    conv_pool: Tensor,
    state_pool: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    has_initial: Tensor | None = None,
) -> Tensor:
    """Implement `Kernels.gated_delta_step`, in three launches."""
    slots = (read_slots, write_slots)
    conv = causal_conv1d_update(
        inputs.qkv, weights.conv_weight, None, conv_pool, *slots, has_initial
    )
    q, k, v = weights.split_conv(conv)
    decay = (weights.A, weights.dt_bias)
    o = gated_delta_update(
        q, k, v, inputs.a, inputs.b, state_pool, *slots, has_initial, decay=decay
    )
    return norm_of_deltas(weights, o, inputs.z)


def plan_delta_prefill(
    cu_seqlens_host: Sequence[int],
    prefix_lens_host: Sequence[int],
    width: int,
    snapshots: SnapshotPlan | None,
) -> HostPlan[DeltaRows]:
    """Implement `Kernels.plan_delta_prefill`."""
    lens = (cu_seqlens_host, prefix_lens_host)
    tiles = conv_tiles(*lens, snapshots)
    chunks = prompt_chunks(*lens, CHUNK, snapshots)

    def build(parts: Iterator[Tensor]) -> DeltaRows:
        tiles_of, chunks_of = tiles.build(parts), chunks.build(parts)
        return lambda rows: _prefill_of(tiles_of(rows), chunks_of(rows))

    return HostPlan((*tiles.lists, *chunks.lists), build)


def _prefill_of(tiles: ConvTiles, chunks: PromptChunks) -> DeltaPrefill:
    def prefill(
        weights: DeltaWeights, inputs: DeltaInputs, conv_pool: Tensor, state_pool: Tensor
    ) -> Tensor:
        conv = causal_conv1d_prompts(inputs.qkv, weights.conv_weight, None, conv_pool, tiles)
        q, k, v = weights.split_conv(conv)
        decay = (weights.A, weights.dt_bias)
        o = gated_delta_prompts(q, k, v, inputs.a, inputs.b, state_pool, chunks, decay)
        return norm_of_deltas(weights, o, inputs.z)

    return prefill


def norm_of_deltas(weights: DeltaWeights, o: Tensor, z: Tensor) -> Tensor:
    """Gate and norm each head: o [T, Hv, V], z [T, Hv V] float -> [T, Hv V], dtype of o."""
    return gated_norm(
        o.flatten(1), z, weights.norm_weight, weights.eps, weights.value_dim,
        norm_before_gate=True, silu=weights.silu_gate,
    )  # fmt: skip
