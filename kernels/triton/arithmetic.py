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
def dot_added(a, b, total):
    """Add a [m, k] times b [k, n] to total [m, n] float32; see `dot`."""
    if INTERPRETED:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, total, input_precision="tf32x3")


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


@triton.jit
def from_e4m3(bits):
    """Convert E4M3 floats, given as the low bytes of integers, to float32."""
    bits = bits.to(tl.uint32)
    shifted = ((bits & 0x80) << 24) | ((bits & 0x7F) << 20)
    return shifted.to(tl.float32, bitcast=True) * _E4M3_BIAS


_E4M3_BIAS = tl.constexpr(2.0**120)  # the distance of the exponents' biases
# Bytes of two words, each to its place in a pair of bfloat16, and times 2**120.
_WORDS_TO_BF16 = tl.constexpr("""
{
    .reg .b32 a, b, c, d, ra, rb, rc, rd, bias;
    prmt.b32 a, $4, $5, 0x4000;
    prmt.b32 b, $4, $5, 0x5010;
    prmt.b32 c, $4, $5, 0x6020;
    prmt.b32 d, $4, $5, 0x7030;
    shr.u32 ra, a, 4;
    shr.u32 rb, b, 4;
    shr.u32 rc, c, 4;
    shr.u32 rd, d, 4;
    and.b32 a, a, 0x80008000;
    and.b32 b, b, 0x80008000;
    and.b32 c, c, 0x80008000;
    and.b32 d, d, 0x80008000;
    and.b32 ra, ra, 0x07f007f0;
    and.b32 rb, rb, 0x07f007f0;
    and.b32 rc, rc, 0x07f007f0;
    and.b32 rd, rd, 0x07f007f0;
    or.b32 a, a, ra;
    or.b32 b, b, rb;
    or.b32 c, c, rc;
    or.b32 d, d, rd;
    mov.b32 bias, 0x7b807b80;
    mul.rn.bf16x2 $0, a, bias;
    mul.rn.bf16x2 $1, b, bias;
    mul.rn.bf16x2 $2, c, bias;
    mul.rn.bf16x2 $3, d, bias;
}
""")


@triton.jit
def four_e4m3(words, dtype: tl.constexpr):
    """Convert the four E4M3 floats of each int32, the lowest byte first, to dtype: four blocks.

    GPUs convert E4M3 to bfloat16 by way of two other types, which takes longer than reading the
    next from memory; their bits take a few steps to their places.
    """
    if dtype == tl.bfloat16 and not INTERPRETED:
        return tl.inline_asm_elementwise(
            _WORDS_TO_BF16, "=r,=r,=r,=r,r,r", [words],
            dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16), is_pure=True, pack=2,
        )  # fmt: skip
    return (
        from_e4m3(words).to(dtype),
        from_e4m3(words >> 8).to(dtype),
        from_e4m3(words >> 16).to(dtype),
        from_e4m3(words >> 24).to(dtype),
    )
