"""Verify natively, in one call a mixer, and commit, in one call for all mixers of a kind; see
baton.kernels.verify."""

import torch
from torch import Tensor

from baton.kernels.conv1d import conv_parts
from baton.kernels.delta_mixer import DeltaInputs, DeltaLayers, DeltaWeights
from baton.kernels.mamba2 import LARGEST_STEP, Mamba2Layers, Mamba2Weights
from baton.kernels.native.arguments import DTYPES
from baton.kernels.native.recorder import SMALL, Native
from baton.kernels.verify import Accepted, kept_delta

# Some arguments of a native operation.
_Fields = dict[str, Tensor | float | None]


def _verifying(
    read_slots: Tensor, has_initial: Tensor | None, kept: Tensor, nodes: Tensor | None
) -> _Fields:
    rows = read_slots.shape[0]
    return {
        "read_slots": read_slots,
        "write_slots": None,
        "has_initial": has_initial,
        "counts": None,
        "track_slots": None,
        "track_counts": None,
        "nodes": nodes,
        "kept": kept,
        "kept_stride": kept.stride(0),
        "rows": rows,
        "tokens": kept.shape[0] // max(1, rows),
        "layers": 1,
    }


def _committing(accepted: Accepted, kept: Tensor) -> _Fields:
    rows = accepted.read_slots.shape[0]
    return {
        "read_slots": accepted.read_slots,
        "write_slots": accepted.write_slots,
        "has_initial": accepted.has_initial,
        "counts": accepted.counts,
        "track_slots": accepted.track_slots,
        "track_counts": accepted.track_counts,
        "nodes": None,
        "kept": None,
        "kept_stride": 0,
        "rows": rows,
        "tokens": kept.shape[1] // max(1, rows),
        "layers": kept.shape[0],
    }


def gated_conv_verify_native(
    native: Native,
    bcx: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    conv_pool: Tensor,
    read_slots: Tensor,
    has_initial: Tensor | None,
    kept: Tensor,
    nodes: Tensor | None = None,
) -> Tensor:
    """Implement `Kernels.gated_conv_verify` for float32 bcx; the pool in float32 or bfloat16."""
    before, after, x = conv_parts(bcx, weight.shape[0])
    out = native.empty(bcx.shape[0], weight.shape[0])
    native.call(
        "conv_tokens",
        out.numel() * weight.shape[1] < SMALL,
        x=x,
        before=before,
        after=after,
        taps=weight,
        bias=bias,
        out=out,
        silu=0,
        **_windows(x[None], weight.shape[1], conv_pool[None]),
        **_verifying(read_slots, has_initial, kept, nodes),
    )
    return out


def gated_conv_commit_native(
    native: Native, kept: Tensor, width: int, conv_pools: Tensor, accepted: Accepted
) -> None:
    """Implement `Kernels.gated_conv_commit`; the pools in float32 or bfloat16."""
    native.call(
        "conv_tokens",
        kept.numel() * width < SMALL,
        x=kept,
        before=None,
        after=None,
        taps=None,
        bias=None,
        out=None,
        silu=0,
        **_windows(kept, width, conv_pools),
        **_committing(accepted, kept),
    )


def _windows(x: Tensor, width: int, conv_pools: Tensor) -> _Fields:
    """x: [L, B Q, C]; conv_pools: [L, slots, C, width - 1]"""
    return {
        "pool": conv_pools,
        "channels": x.shape[2],
        "x_stride": x.stride(1),
        "width": width,
        "pool_stride": conv_pools.stride(1),
        "dtype": DTYPES[conv_pools.dtype],
        "x_layer": x.stride(0),
        "pool_layer": conv_pools.stride(0),
    }


def mamba2_verify_native(
    native: Native,
    weights: Mamba2Weights,
    zxbcdt: Tensor,
    conv_pool: Tensor,
    ssm_pool: Tensor,
    read_slots: Tensor,
    has_initial: Tensor | None,
    kept: Tensor,
    nodes: Tensor | None = None,
) -> Tensor:
    """Implement `Kernels.mamba2_verify` for float32 zxbcdt; pools in float32 or bfloat16."""
    y = native.empty(zxbcdt.shape[0], weights.inner)
    rows = _verifying(read_slots, has_initial, kept, nodes)
    inputs = zxbcdt[None, :, weights.inner :]
    pools = conv_pool[None], ssm_pool[None]
    _mamba2(native, weights, weights, inputs, zxbcdt, pools, y, rows)
    return y


def mamba2_commit_native(
    native: Native,
    layers: Mamba2Layers,
    kept: Tensor,
    conv_pools: Tensor,
    ssm_pools: Tensor,
    accepted: Accepted,
) -> None:
    """Implement `Kernels.mamba2_commit`; pools in float32 or bfloat16."""
    rows = _committing(accepted, kept)
    _mamba2(native, layers.each[0], layers, kept, None, (conv_pools, ssm_pools), None, rows)


def _mamba2(
    native: Native,
    weights: Mamba2Weights,
    moving: Mamba2Weights | Mamba2Layers,
    inputs: Tensor,
    z: Tensor | None,
    pools: tuple[Tensor, Tensor],
    y: Tensor | None,
    rows: _Fields,
) -> None:
    """Run the operation.

    weights: of the first layer. moving: those that advance the states, of all L layers
    inputs: [L, B Q, C + H]. pools: [L, slots, ...]
    """
    conv_pools, ssm_pools = pools
    channels, width = weights.conv_weight.shape
    low, high = weights.dt_limit
    convolved = native.empty(*inputs.shape[:2], channels)
    native.call(
        "mamba2_tokens",
        inputs=inputs,
        z=z,
        conv_weight=moving.conv_weight,
        conv_bias=moving.conv_bias,
        A=moving.A,
        D=weights.D,
        dt_bias=moving.dt_bias,
        norm_weight=weights.norm_weight,
        conv_pool=conv_pools,
        ssm_pool=ssm_pools,
        convolved=convolved,
        y=y,
        stride=inputs.stride(1),
        heads=weights.heads,
        head_dim=weights.head_dim,
        groups=weights.groups,
        d_state=weights.d_state,
        width=width,
        conv_stride=conv_pools.stride(1),
        ssm_stride=ssm_pools.stride(1),
        conv_dtype=DTYPES[conv_pools.dtype],
        ssm_dtype=DTYPES[ssm_pools.dtype],
        gate_last=int(weights.gate_last),
        input_layer=inputs.stride(0),
        conv_layer=conv_pools.stride(0),
        ssm_layer=ssm_pools.stride(0),
        dt_low=low,
        dt_high=min(high, LARGEST_STEP),
        eps=weights.eps,
        **rows,
    )


def gated_delta_verify_native(
    native: Native,
    weights: DeltaWeights,
    inputs: DeltaInputs,
    conv_pool: Tensor,
    state_pool: Tensor,
    read_slots: Tensor,
    has_initial: Tensor | None,
    kept: Tensor,
    nodes: Tensor | None = None,
) -> Tensor:
    """Implement `Kernels.gated_delta_verify` for float32 inputs; pools in float32 or bfloat16."""
    y = native.empty(inputs.qkv.shape[0], weights.heads * weights.value_dim)
    rows = _verifying(read_slots, has_initial, kept, nodes)
    parts = inputs.qkv[None], inputs.b[None], inputs.a[None]
    pools = conv_pool[None], state_pool[None]
    _delta(native, weights, weights, parts, inputs.z, pools, y, rows)
    return y


def gated_delta_commit_native(
    native: Native,
    layers: DeltaLayers,
    kept: Tensor,
    conv_pools: Tensor,
    state_pools: Tensor,
    accepted: Accepted,
) -> None:
    """Implement `Kernels.gated_delta_commit`; pools in float32 or bfloat16."""
    qkv, b, a = torch.split(kept, kept_delta(layers.each[0]), dim=-1)
    rows, pools = _committing(accepted, kept), (conv_pools, state_pools)
    _delta(native, layers.each[0], layers, (qkv, b, a), None, pools, None, rows)


def _delta(
    native: Native,
    weights: DeltaWeights,
    moving: DeltaWeights | DeltaLayers,
    parts: tuple[Tensor, Tensor, Tensor],
    z: Tensor | None,
    pools: tuple[Tensor, Tensor],
    y: Tensor | None,
    rows: _Fields,
) -> None:
    """Run the operation.

    weights: of the first layer. moving: those that advance the states, of all L layers
    parts: qkv, b and a of DeltaInputs, [L, B Q, ...]. pools: [L, slots, ...]
    """
    qkv, b, a = parts
    conv_pools, state_pools = pools
    channels, width = weights.conv_weight.shape
    convolved = native.empty(*qkv.shape[:2], channels)
    native.call(
        "delta_tokens",
        qkv=qkv,
        z=z,
        b=b,
        a=a,
        conv_weight=moving.conv_weight,
        A=moving.A,
        dt_bias=moving.dt_bias,
        norm_weight=weights.norm_weight,
        conv_pool=conv_pools,
        state_pool=state_pools,
        convolved=convolved,
        y=y,
        qkv_stride=qkv.stride(1),
        z_stride=0 if z is None else z.stride(0),
        b_stride=b.stride(1),
        a_stride=a.stride(1),
        key_heads=weights.key_heads,
        heads=weights.heads,
        key_dim=weights.key_dim,
        value_dim=weights.value_dim,
        width=width,
        conv_stride=conv_pools.stride(1),
        state_stride=state_pools.stride(1),
        conv_dtype=DTYPES[conv_pools.dtype],
        state_dtype=DTYPES[state_pools.dtype],
        channelwise=int(weights.dt_bias.shape[0] > weights.heads),
        silu_gate=int(weights.silu_gate),
        input_layer=qkv.stride(0),
        conv_layer=conv_pools.stride(0),
        state_layer=state_pools.stride(0),
        eps=weights.eps,
        **rows,
    )
