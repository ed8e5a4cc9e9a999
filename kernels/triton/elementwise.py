"""What layers do to activations between products on a GPU; see baton.kernels.elementwise."""

import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.triton.arithmetic import sigmoid
from baton.kernels.triton.shapes import packed

_BLOCK = 1024  # values of one program


def swiglu(gate_up: Tensor) -> Tensor:
    """As baton.kernels.elementwise.swiglu."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty((rows, width))
    if out.numel():
        _activate[(triton.cdiv(width, _BLOCK), rows)](
            packed(gate_up), out, gate_up.stride(0), width, GATED=True, BLOCK=_BLOCK, num_warps=4
        )
    return out


def relu2(x: Tensor) -> Tensor:
    """As baton.kernels.elementwise.relu2."""
    rows, width = x.shape
    out = x.new_empty((rows, width))
    if out.numel():
        _activate[(triton.cdiv(width, _BLOCK), rows)](
            packed(x), out, x.stride(0), width, GATED=False, BLOCK=_BLOCK, num_warps=4
        )
    return out


@triton.jit
def _activate(x, out, stride, width, GATED: tl.constexpr, BLOCK: tl.constexpr):
    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(1).to(tl.int64)
    inside = c < width
    value = tl.load(x + row * stride + c, mask=inside, other=0.0).to(tl.float32)
    if GATED:
        up = tl.load(x + row * stride + width + c, mask=inside, other=0.0).to(tl.float32)
        value = value * sigmoid(value) * up
    else:
        value = tl.maximum(value, 0.0)
        value = value * value
    tl.store(out + row * width + c, value, mask=inside)
