"""Several tokens a row through recurrent mixers on a GPU; see baton.kernels.verify."""

import torch
from torch import Tensor

from baton.kernels.conv1d import conv_parts
from baton.kernels.delta_mixer import DeltaInputs, DeltaLayers, DeltaWeights
from baton.kernels.mamba2 import Mamba2Layers, Mamba2Weights
from baton.kernels.triton.conv_tokens import commit_windows, convolve_and_commit, verify_conv
from baton.kernels.triton.delta_mixer import norm_of_deltas
from baton.kernels.triton.delta_tokens import commit_deltas, verify_deltas
from baton.kernels.triton.mamba2 import norm_of_states
from baton.kernels.triton.state_tokens import commit_states, verify_states
from baton.kernels.verify import Accepted, kept_delta


def gated_conv_verify(
    bcx: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    conv_pool: Tensor,
    read_slots: Tensor,
    has_initial: Tensor | None,
    kept: Tensor,
    nodes: Tensor | None = None,
) -> Tensor:
    """Implement `Kernels.gated_conv_verify`, in one launch."""
    before, after, x = conv_parts(bcx, weight.shape[0])
    return verify_conv(
        x, weight, bias, conv_pool, read_slots, has_initial, silu=False, gates=(before, after),
        kept=kept, nodes=nodes,
    )  # fmt: skip


def gated_conv_commit(kept: Tensor, width: int, conv_pools: Tensor, accepted: Accepted) -> None:
    """Implement `Kernels.gated_conv_commit`, in one launch."""
    commit_windows(kept, width, conv_pools, accepted)


def mamba2_verify(
    weights: Mamba2Weights,
    zxbcdt: Tensor,
    conv_pool: Tensor,
    ssm_pool: Tensor,
    read_slots: Tensor,
    has_initial: Tensor | None,
    kept: Tensor,
    nodes: Tensor | None = None,
) -> Tensor:
    """Implement `Kernels.mamba2_verify`, in three launches and a copy."""
    kept.copy_(zxbcdt[:, weights.inner :])
    z, conv_input, dt = torch.split(zxbcdt, weights.splits, dim=-1)
    rows = (read_slots, has_initial)
    taps = weights.conv_weight, weights.conv_bias
    conv = verify_conv(conv_input, *taps, conv_pool, *rows, nodes=nodes)
    y = verify_states(weights, conv, dt, ssm_pool, *rows, nodes)
    return norm_of_states(weights, y.flatten(1), z)


def mamba2_commit(
    layers: Mamba2Layers, kept: Tensor, conv_pools: Tensor, ssm_pools: Tensor, accepted: Accepted
) -> None:
    """Implement `Kernels.mamba2_commit`, in two launches: the first convolves `kept` in place."""
    conv, dt = torch.split(kept, layers.each[0].splits[1:], dim=-1)
    convolve_and_commit(conv, layers.conv_weight, layers.conv_bias, conv_pools, accepted)
    commit_states(layers, conv, dt, ssm_pools, accepted)


def gated_delta_verify(
    weights: DeltaWeights,
    inputs: DeltaInputs,
    conv_pool: Tensor,
    state_pool: Tensor,
    read_slots: Tensor,
    has_initial: Tensor | None,
    kept: Tensor,
    nodes: Tensor | None = None,
) -> Tensor:
    """Implement `Kernels.gated_delta_verify`, in three launches and a copy."""
    torch.cat((inputs.qkv, inputs.b, inputs.a), dim=-1, out=kept)
    rows = (read_slots, has_initial)
    conv = verify_conv(inputs.qkv, weights.conv_weight, None, conv_pool, *rows, nodes=nodes)
    o = verify_deltas(weights, conv, inputs.b, inputs.a, state_pool, *rows, nodes)
    return norm_of_deltas(weights, o, inputs.z)


def gated_delta_commit(
    layers: DeltaLayers, kept: Tensor, conv_pools: Tensor, state_pools: Tensor, accepted: Accepted
) -> None:
    """Implement `Kernels.gated_delta_commit`, in two launches: the first convolves `kept` in
    place."""
    conv, b, a = torch.split(kept, kept_delta(layers.each[0]), dim=-1)
    convolve_and_commit(conv, layers.conv_weight, None, conv_pools, accepted)
    commit_deltas(layers, conv, b, a, state_pools, accepted)
