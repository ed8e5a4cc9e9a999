"""Arithmetic that several kernels share.

Under Triton's interpreter a product of bfloat16 blocks multiplies their bits as integers, and a
float32 is cut to bfloat16, not rounded (seen in 3.6 and 3.9): there `dot` widens its operands and
`narrow` rounds by hand.
"""

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def dot(a, b):
    """Multiply a [m, k] by b [k, n] -> [m, n] float32. A float32 operand is taken as a sum of tf32
    numbers: it keeps its precision, on tensor cores."""
    if INTERPRETED:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, input_precision="tf32x3")


@triton.jit
def narrow(x, dtype: tl.constexpr):
    """Round float32 x to dtype."""
    if INTERPRETED:
        if dtype == tl.bfloat16:
            bits = x.to(tl.uint32, bitcast=True)
            x = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).to(tl.float32, bitcast=True)
    return x.to(dtype)


@triton.jit
def in_halves(x):
    """Return float64 x as the sum of two float32, the first of them its nearest."""
    first = x.to(tl.float32)
    return first, (x - first.to(tl.float64)).to(tl.float32)


@triton.jit
def decay_between(log, rest, before, rest_before):
    """Compute exp(log - before), at most one, of cumulative logarithms in halves. Their difference
    may be small beside them, where one float32 would have lost it."""
    return tl.exp(tl.minimum((log - before) + (rest - rest_before), 0.0))


@triton.jit
def sigmoid(x):
    """Compute 1 / (1 + exp(-x)) of float32."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def log1p(x):
    """Compute log(1 + x) of float32 above -1, with small results as exact as large ones."""
    u = 1.0 + x
    # Kahan's correction: what the sum 1 + x has lost of x is lost from the logarithm alike.
    return tl.where(u == 1.0, x, tl.log(u) * (x / tl.where(u == 1.0, 1.0, u - 1.0)))


@triton.jit
def softplus(x):
    """Compute log(1 + exp(x)) of float32, with small results as exact as large ones."""
    return tl.maximum(x, 0.0) + log1p(tl.exp(-tl.abs(x)))


@triton.jit
def discretise(dt, dt_bias, low, high):
    """Compute clamp(softplus(dt + dt_bias)) of float32."""
    return tl.minimum(tl.maximum(softplus(dt + dt_bias), low), high)
