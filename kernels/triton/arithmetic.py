"""Arithmetic that several kernels share.

Under Triton's interpreter a product of bfloat16 blocks multiplies their bits as integers (seen in
3.6 and 3.9), so there the operands are widened first.
"""

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def dot(a, b):
    """a [m, k] b [k, n] -> [m, n] float32. float32 operands are not rounded to tf32."""
    if INTERPRETED:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def sigmoid(x):
    """Of float32."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def softplus(x):
    """log(1 + exp(x)) of float32, with small results as exact as large ones."""
    e = tl.exp(-tl.abs(x))
    u = 1.0 + e
    # Kahan's correction: what the sum 1 + e has lost of e is lost from the logarithm alike.
    log1p = tl.where(u == 1.0, e, tl.log(u) * (e / tl.where(u == 1.0, 1.0, u - 1.0)))
    return tl.maximum(x, 0.0) + log1p


@triton.jit
def discretise(dt, dt_bias, low, high):
    """clamp(softplus(dt + dt_bias)) of float32."""
    return tl.minimum(tl.maximum(softplus(dt + dt_bias), low), high)


@triton.jit
def tanh(x):
    """Of float32; exact at both infinities."""
    return 2.0 / (1.0 + tl.exp(-2.0 * x)) - 1.0
