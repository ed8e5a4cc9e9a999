"""Elementwise operations on activations, between a layer's larger operations."""

import torch
import torch.nn.functional as F
from torch import Tensor

from baton.kernels.native.recorder import SMALL, Native


def swiglu(gate_up: Tensor) -> Tensor:
    """Implement `Kernels.swiglu` in torch."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def swiglu_native(native: Native, gate_up: Tensor) -> Tensor:
    """Implement `Kernels.swiglu` natively, for contiguous float32."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = native.empty(rows, width)
    native.call(
        "swiglu",
        gate_up.numel() < SMALL,
        gate_up=gate_up,
        out=out,
        rows=rows,
        width=width,
    )
    return out


def geglu(gate_up: Tensor) -> Tensor:
    """Implement `Kernels.geglu` in torch."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate) * up


def geglu_native(native: Native, gate_up: Tensor) -> Tensor:
    """Implement `Kernels.geglu` natively, for contiguous float32."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = native.empty(rows, width)
    native.call(
        "geglu",
        gate_up.numel() < SMALL,
        gate_up=gate_up,
        out=out,
        rows=rows,
        width=width,
    )
    return out


def relu2(x: Tensor) -> Tensor:
    """Implement `Kernels.relu2` in torch."""
    return F.relu(x).square()


def relu2_native(native: Native, x: Tensor) -> Tensor:
    """Implement `Kernels.relu2` natively, for contiguous float32."""
    out = native.empty(*x.shape)
    native.call(
        "relu2",
        x.numel() < SMALL,
        x=x,
        out=out,
        size=x.numel(),
    )
    return out


def sigmoid(x: Tensor) -> Tensor:
    """Compute 1 / (1 + exp(-x)) in float32.

    Written out, because torch's sigmoid rounds differently at the end of a buffer, which would make
    a result depend on what else is in the batch.
    """
    return x.float().neg().exp_().add_(1.0).reciprocal_()


def sigmoid_gated(x: Tensor, gate: Tensor) -> Tensor:
    """Implement `Kernels.sigmoid_gated` in torch."""
    return (x.float() * sigmoid(gate)).to(x.dtype)


def sigmoid_gated_native(native: Native, x: Tensor, gate: Tensor) -> Tensor:
    """Implement `Kernels.sigmoid_gated` natively, for contiguous float32 x and gates whose channels
    lie end to end."""
    rows, width = x.shape
    out = native.empty(rows, width)
    native.call(
        "sigmoid_gated",
        out.numel() < SMALL,
        x=x,
        gate=gate,
        out=out,
        rows=rows,
        width=width,
        gate_stride=gate.stride(0),
        single=int(gate.shape[1] == 1),
    )
    return out


def add_scaled(x: Tensor, y: Tensor, alpha: float) -> Tensor:
    """Implement `Kernels.add_scaled` in torch."""
    return torch.add(x, y, alpha=alpha)


def add_scaled_native(native: Native, x: Tensor, y: Tensor, alpha: float) -> Tensor:
    """Implement `Kernels.add_scaled` natively, for contiguous float32."""
    out = native.empty(*x.shape)
    size = x.numel()
    native.call(
        "add_scaled",
        size < SMALL,
        x=x,
        y=y,
        out=out,
        size=size,
        alpha=alpha,
    )
    return out


def scaled(x: Tensor, factor: float) -> Tensor:
    """Implement `Kernels.scaled` in torch."""
    return x if factor == 1.0 else x * factor


def scaled_native(native: Native, x: Tensor, factor: float) -> Tensor:
    """Implement `Kernels.scaled` natively, for contiguous float32."""
    if factor == 1.0:
        return x
    out = native.empty(*x.shape)
    size = x.numel()
    native.call(
        "add_scaled",
        size < SMALL,
        x=None,
        y=x,
        out=out,
        size=size,
        alpha=factor,
    )
    return out


def concat(x: Tensor, y: Tensor) -> Tensor:
    """Implement `Kernels.concat` in torch."""
    return torch.cat((x, y), dim=1)


def concat_native(native: Native, x: Tensor, y: Tensor) -> Tensor:
    """Implement `Kernels.concat` natively, for float32."""
    rows, x_width, y_width = x.shape[0], x.shape[1], y.shape[1]
    out = native.empty(rows, x_width + y_width)
    native.call(
        "concat",
        out.numel() < SMALL,
        x=x,
        y=y,
        out=out,
        rows=rows,
        x_width=x_width,
        y_width=y_width,
        x_stride=x.stride(0),
        y_stride=y.stride(0),
    )
    return out


def select_rows(x: Tensor, rows: Tensor) -> Tensor:
    """Implement `Kernels.select_rows` in torch."""
    return x.index_select(0, rows)


def select_rows_native(native: Native, x: Tensor, rows: Tensor) -> Tensor:
    """Implement `Kernels.select_rows` natively, for contiguous float32."""
    count, width = rows.shape[0], x.shape[1]
    out = native.empty(count, width)
    native.call(
        "select_rows",
        out.numel() < SMALL,
        x=x,
        rows=rows,
        out=out,
        count=count,
        width=width,
    )
    return out
