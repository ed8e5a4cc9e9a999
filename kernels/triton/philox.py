"""The noise of baton.kernels.philox, on a GPU: the same bits."""

import triton
import triton.language as tl


@triton.jit
def _mix(c0, c1, c2, c3, k0, k1):
    """Run ten rounds over a counter of four uint32 words and a key of two."""
    for _ in tl.static_range(10):
        high, low = tl.umulhi(c2, 0xCD9E8D57), c2 * 0xCD9E8D57
        other_high, other_low = tl.umulhi(c0, 0xD2511F53), c0 * 0xD2511F53
        c0, c2 = high ^ c1 ^ k0, other_high ^ c3 ^ k1
        c1, c3 = low, other_low
        k0 = k0 + 0x9E3779B9
        k1 = k1 + 0xBB67AE85
    return c0, c1, c2, c3


@triton.jit
def uniform(seed, position, token):
    """Return a float32 number of (0, 1) for each vocabulary index. seed, position: int64 scalars;
    token: [n] int32.
    """
    zero = tl.zeros_like(token).to(tl.uint32)
    c0 = (token // 4).to(tl.uint32)
    c1 = zero + (position & 0xFFFFFFFF).to(tl.uint32)
    c2 = zero + ((position >> 32) & 0xFFFFFFFF).to(tl.uint32)
    k0 = zero + (seed & 0xFFFFFFFF).to(tl.uint32)
    k1 = zero + ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    w0, w1, w2, w3 = _mix(c0, c1, c2, zero, k0, k1)
    word = token % 4
    bits = tl.where(word < 2, tl.where(word == 0, w0, w1), tl.where(word == 2, w2, w3))
    # The largest words round to 1.0 in float32; the largest number below it stands for them.
    return tl.minimum((bits.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.99999994039535522)
