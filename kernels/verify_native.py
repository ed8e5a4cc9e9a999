"""Verify and commit of recurrent mixers natively, in one call each; see baton.kernels.verify."""

import torch
from torch import Tensor

from baton.kernels.delta_mixer import DeltaInputs, DeltaLayers, DeltaWeights
from baton.kernels.mamba2 import LARGEST_STEP, Mamba2Layers, Mamba2Weights
from baton.kernels.native import signatures
from baton.kernels.native.recorder import SMALL, Native
from baton.kernels.verify import Accepted, kept_delta

# The rows of a call, as the native operations have them.
_Rows = dict[str, Tensor | float | None]


def _verifying(read_slots: Tensor, has_initial: Tensor | None, kept: Tensor) -> _Rows:
    rows = read_slots.shape[0]
    return {
        "read_slots": read_slots,
        "write_slots": None,
        "has_initial": has_initial,
        "counts": None,
        "track_slots": None,
        "track_counts": None,
        "kept": kept,
        "kept_stride": kept.stride(0),
        "rows": rows,
        "tokens": kept.shape[0] // max(1, rows),
    }


def _committing(accepted: Accepted, kept: Tensor) -> _Rows:
    rows = accepted.read_slots.shape[0]
    return {
        "read_slots": accepted.read_slots,
        "write_slots": accepted.write_slots,
        "has_initial": accepted.has_initial,
        "counts": accepted.counts,
        "track_slots": accepted.track_slots,
        "track_counts": accepted.track_counts,
        "kept": None,
        "kept_stride": 0,
        "rows": rows,
        "tokens": kept.shape[0] // max(1, rows),
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
) -> Tensor:
    """Implement `Kernels.gated_conv_verify` for float32 bcx; the pool in float32 or bfloat16."""
    before, after, x = bcx.chunk(3, dim=-1)
    out = native.empty(bcx.shape[0], weight.shape[0])
    rows = _verifying(read_slots, has_initial, kept)
    _conv(native, x, before, after, weight, bias, conv_pool, out, rows)
    return out


def gated_conv_commit_native(
    native: Native, kept: Tensor, width: int, conv_pools: Tensor, accepted: Accepted
) -> None:
    """Implement `Kernels.gated_conv_commit`; the pools in float32 or bfloat16."""
    unwanted = native.empty(*kept.shape[1:])
    taps = native.empty(kept.shape[2], width)  # of sums that nobody reads
    rows = _committing(accepted, kept[0])
    for layer in range(kept.shape[0]):
        _conv(native, kept[layer], None, None, taps, None, conv_pools[layer], unwanted, rows)


def _conv(
    native: Native,
    x: Tensor,
    before: Tensor | None,
    after: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    conv_pool: Tensor,
    out: Tensor,
    rows: _Rows,
) -> None:
    channels, width = weight.shape
    native.call(
        signatures.ConvTokensArguments(
            x=x,
            before=before,
            after=after,
            taps=weight,
            bias=bias,
            pool=conv_pool,
            out=out,
            channels=channels,
            x_stride=x.stride(0),
            width=width,
            pool_stride=conv_pool.stride(0),
            dtype=signatures.DTYPES[conv_pool.dtype],
            silu=0,
            **rows,
        ),
        small=out.numel() * width < SMALL,
    )


def mamba2_verify_native(
    native: Native,
    weights: Mamba2Weights,
    zxbcdt: Tensor,
    conv_pool: Tensor,
    ssm_pool: Tensor,
    read_slots: Tensor,
    has_initial: Tensor | None,
    kept: Tensor,
) -> Tensor:
    """Implement `Kernels.mamba2_verify` for float32 zxbcdt; pools in float32 or bfloat16."""
    y = native.empty(zxbcdt.shape[0], weights.inner)
    rows = _verifying(read_slots, has_initial, kept)
    inputs = zxbcdt[:, weights.inner :]
    _mamba2(native, weights, inputs, zxbcdt, conv_pool, ssm_pool, y, rows)
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
    rows = _committing(accepted, kept[0])
    for layer, weights in enumerate(layers.each):
        pools = conv_pools[layer], ssm_pools[layer]
        _mamba2(native, weights, kept[layer], None, *pools, None, rows)


def _mamba2(
    native: Native,
    weights: Mamba2Weights,
    inputs: Tensor,
    z: Tensor | None,
    conv_pool: Tensor,
    ssm_pool: Tensor,
    y: Tensor | None,
    rows: _Rows,
) -> None:
    channels, width = weights.conv_weight.shape
    low, high = weights.dt_limit
    convolved = native.empty(inputs.shape[0], channels)
    native.call(
        signatures.Mamba2TokensArguments(
            inputs=inputs,
            z=z,
            conv_weight=weights.conv_weight,
            conv_bias=weights.conv_bias,
            A=weights.A,
            D=weights.D,
            dt_bias=weights.dt_bias,
            norm_weight=weights.norm_weight,
            conv_pool=conv_pool,
            ssm_pool=ssm_pool,
            convolved=convolved,
            y=y,
            stride=inputs.stride(0),
            heads=weights.heads,
            head_dim=weights.head_dim,
            groups=weights.groups,
            d_state=weights.d_state,
            width=width,
            conv_stride=conv_pool.stride(0),
            ssm_stride=ssm_pool.stride(0),
            conv_dtype=signatures.DTYPES[conv_pool.dtype],
            ssm_dtype=signatures.DTYPES[ssm_pool.dtype],
            gate_last=int(weights.gate_last),
            dt_low=low,
            dt_high=min(high, LARGEST_STEP),
            eps=weights.eps,
            **rows,
        )
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
) -> Tensor:
    """Implement `Kernels.gated_delta_verify` for float32 inputs; pools in float32 or bfloat16."""
    y = native.empty(inputs.qkv.shape[0], weights.heads * weights.value_dim)
    rows = _verifying(read_slots, has_initial, kept)
    parts = inputs.qkv, inputs.b, inputs.a
    _delta(native, weights, parts, inputs.z, conv_pool, state_pool, y, rows)
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
    rows = _committing(accepted, kept[0])
    for layer, weights in enumerate(layers.each):
        qkv, b, a = torch.split(kept[layer], kept_delta(weights), dim=-1)
        pools = conv_pools[layer], state_pools[layer]
        _delta(native, weights, (qkv, b, a), None, *pools, None, rows)


def _delta(
    native: Native,
    weights: DeltaWeights,
    parts: tuple[Tensor, Tensor, Tensor],
    z: Tensor | None,
    conv_pool: Tensor,
    state_pool: Tensor,
    y: Tensor | None,
    rows: _Rows,
) -> None:
    """Run the operation. parts: qkv, b and a of DeltaInputs."""
    qkv, b, a = parts
    channels, width = weights.conv_weight.shape
    convolved = native.empty(qkv.shape[0], channels)
    native.call(
        signatures.DeltaTokensArguments(
            qkv=qkv,
            z=z,
            b=b,
            a=a,
            conv_weight=weights.conv_weight,
            A=weights.A,
            dt_bias=weights.dt_bias,
            norm_weight=weights.norm_weight,
            conv_pool=conv_pool,
            state_pool=state_pool,
            convolved=convolved,
            y=y,
            qkv_stride=qkv.stride(0),
            z_stride=0 if z is None else z.stride(0),
            b_stride=b.stride(0),
            a_stride=a.stride(0),
            key_heads=weights.key_heads,
            heads=weights.heads,
            key_dim=weights.key_dim,
            value_dim=weights.value_dim,
            width=width,
            conv_stride=conv_pool.stride(0),
            state_stride=state_pool.stride(0),
            conv_dtype=signatures.DTYPES[conv_pool.dtype],
            state_dtype=signatures.DTYPES[state_pool.dtype],
            channelwise=int(weights.dt_bias.shape[0] > weights.heads),
            silu_gate=int(weights.silu_gate),
            eps=weights.eps,
            **rows,
        )
    )
