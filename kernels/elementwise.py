"""What layers do to activations between their larger operations."""

import torch
import torch.nn.functional as F
from torch import Tensor

from baton.kernels.native import signatures
from baton.kernels.native.recorder import SMALL, Native


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up: gate_up [T, 2 I] float, the gate first -> [T, I], dtype of gate_up."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def swiglu_native(native: Native, gate_up: Tensor) -> Tensor:
    """The same, for contiguous float32."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = native.empty(rows, width)
    arguments = signatures.SwiGlu(gate_up.data_ptr(), out.data_ptr(), rows, width)
    native.call(arguments, small=gate_up.numel() < SMALL)
    return out


def geglu(gate_up: Tensor) -> Tensor:
    """gelu(gate) * up, the exact gelu: gate_up [T, 2 I] float, the gate first -> [T, I]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate) * up


def geglu_native(native: Native, gate_up: Tensor) -> Tensor:
    """The same, for contiguous float32."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = native.empty(rows, width)
    arguments = signatures.GeGlu(gate_up.data_ptr(), out.data_ptr(), rows, width)
    native.call(arguments, small=gate_up.numel() < SMALL)
    return out


def relu2(x: Tensor) -> Tensor:
    """max(x, 0)^2, shape and dtype of x."""
    return F.relu(x).square()


def relu2_native(native: Native, x: Tensor) -> Tensor:
    """The same, for contiguous float32."""
    out = native.empty(*x.shape)
    arguments = signatures.Relu2(x.data_ptr(), out.data_ptr(), x.numel())
    native.call(arguments, small=x.numel() < SMALL)
    return out


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)) in float32.

    Written out, because torch's sigmoid rounds differently at the end of a buffer, which would make
    a result depend on what else is in the batch.
    """
    return x.float().neg().exp_().add_(1.0).reciprocal_()


def sigmoid_gated(x: Tensor, gate: Tensor) -> Tensor:
    """x [T, I] * sigmoid(gate [T, I or 1]) float -> [T, I], dtype of x; computed in float32."""
    return (x.float() * sigmoid(gate)).to(x.dtype)


def sigmoid_gated_native(native: Native, x: Tensor, gate: Tensor) -> Tensor:
    """The same, for contiguous float32 x and gates whose channels lie end to end."""
    rows, width = x.shape
    out = native.empty(rows, width)
    native.call(
        signatures.SigmoidGated(
            x.data_ptr(),
            gate.data_ptr(),
            out.data_ptr(),
            rows,
            width,
            gate.stride(0),
            int(gate.shape[1] == 1),
        ),
        small=out.numel() < SMALL,
    )
    return out


def add_scaled(x: Tensor, y: Tensor, alpha: float) -> Tensor:
    """x + alpha * y, both of one shape and dtype."""
    return torch.add(x, y, alpha=alpha)


def add_scaled_native(native: Native, x: Tensor, y: Tensor, alpha: float) -> Tensor:
    """The same, for contiguous float32."""
    out = native.empty(*x.shape)
    size = x.numel()
    arguments = signatures.AddScaled(x.data_ptr(), y.data_ptr(), out.data_ptr(), size, alpha)
    native.call(arguments, small=size < SMALL)
    return out


def scaled(x: Tensor, factor: float) -> Tensor:
    """factor * x; x itself where the factor is one."""
    return x if factor == 1.0 else x * factor


def scaled_native(native: Native, x: Tensor, factor: float) -> Tensor:
    """The same, for contiguous float32."""
    if factor == 1.0:
        return x
    out = native.empty(*x.shape)
    size = x.numel()
    arguments = signatures.AddScaled(None, x.data_ptr(), out.data_ptr(), size, factor)
    native.call(arguments, small=size < SMALL)
    return out


def beside(x: Tensor, y: Tensor) -> Tensor:
    """x [T, A] and y [T, B] float, of one dtype -> [T, A + B]"""
    return torch.cat((x, y), dim=1)


def beside_native(native: Native, x: Tensor, y: Tensor) -> Tensor:
    """The same, for float32."""
    rows, x_width, y_width = x.shape[0], x.shape[1], y.shape[1]
    out = native.empty(rows, x_width + y_width)
    pointers = (x.data_ptr(), y.data_ptr(), out.data_ptr())
    strides = (x.stride(0), y.stride(0))
    arguments = signatures.Beside(*pointers, rows, x_width, y_width, *strides)
    native.call(arguments, small=out.numel() < SMALL)
    return out


def select_rows(x: Tensor, rows: Tensor) -> Tensor:
    """x [T, K] float, rows [n] int64 -> [n, K]"""
    return x.index_select(0, rows)


def select_rows_native(native: Native, x: Tensor, rows: Tensor) -> Tensor:
    """The same, for contiguous float32."""
    count, width = rows.shape[0], x.shape[1]
    out = native.empty(count, width)
    arguments = signatures.SelectRows(x.data_ptr(), rows.data_ptr(), out.data_ptr(), count, width)
    native.call(arguments, small=out.numel() < SMALL)
    return out
