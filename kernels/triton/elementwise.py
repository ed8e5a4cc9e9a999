"""Elementwise operations on activations on a GPU; see baton.kernels.elementwise."""

import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.triton.arithmetic import narrow, sigmoid
from baton.kernels.triton.kernel import kernel
from baton.kernels.triton.shapes import packed

_BLOCK = 1024  # values of one program

_SWIGLU = tl.constexpr(0)
_GEGLU = tl.constexpr(1)
_RELU2 = tl.constexpr(2)


def swiglu(gate_up: Tensor) -> Tensor:
    """Implement `Kernels.swiglu`."""
    return _activated(gate_up, gate_up.shape[1] // 2, _SWIGLU.value)


def geglu(gate_up: Tensor) -> Tensor:
    """Implement `Kernels.geglu`; computed in float32."""
    return _activated(gate_up, gate_up.shape[1] // 2, _GEGLU.value)


def relu2(x: Tensor) -> Tensor:
    """Implement `Kernels.relu2`."""
    return _activated(x, x.shape[1], _RELU2.value)


def _activated(x: Tensor, width: int, activation: int) -> Tensor:
    """Apply an activation to x [T, width], or [T, 2 width] where the first half is a gate -> [T,
    width]"""
    rows = x.shape[0]
    out = x.new_empty((rows, width))
    if out.numel():
        _activate[(rows, triton.cdiv(width, _BLOCK))](
            packed(x), out, x.stride(0), width, ACTIVATION=activation, BLOCK=_BLOCK, num_warps=4
        )
    return out


@kernel
def _activate(x, out, stride, width, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = c < width
    value = tl.load(x + row * stride + c, mask=inside, other=0.0).to(tl.float32)
    if ACTIVATION == _RELU2:
        value = tl.maximum(value, 0.0)
        value = value * value
    else:
        if ACTIVATION == _GEGLU:
            value = 0.5 * value * (1.0 + tl.erf(value * 0.7071067811865476))
        else:
            value = value * sigmoid(value)
        value *= tl.load(x + row * stride + width + c, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + c, narrow(value, out.dtype.element_ty), mask=inside)


def sigmoid_gated(x: Tensor, gate: Tensor) -> Tensor:
    """Implement `Kernels.sigmoid_gated`, for x and gate strided over tokens."""
    rows, width = x.shape
    out = x.new_empty((rows, width))
    if out.numel():
        _gate[(rows, triton.cdiv(width, _BLOCK))](
            packed(x), packed(gate), out, x.stride(0), gate.stride(0), width,
            WHOLE=gate.shape[1] != width, BLOCK=_BLOCK, num_warps=4,
        )  # fmt: skip
    return out


@kernel
def _gate(x, gate, out, x_stride, gate_stride, width, WHOLE: tl.constexpr, BLOCK: tl.constexpr):
    """Gate some channels of one token. WHOLE: all channels share one gate."""
    row = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = c < width
    share = gate + row * gate_stride
    if WHOLE:
        share = tl.load(share).to(tl.float32)
    else:
        share = tl.load(share + c, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(x + row * x_stride + c, mask=inside, other=0.0).to(tl.float32)
    value = narrow(value * sigmoid(share), out.dtype.element_ty)
    tl.store(out + row * width + c, value, mask=inside)
