"""Scores of the gated delta rule on a GPU, of one chunk and head a program, and the decays of its
queries and keys.

Lengths of queries and keys are numbers of rows: they scale products, and rows only where those are
stored with a decay for each channel.
"""

import triton
import triton.language as tl

from baton.kernels.triton.arithmetic import (
    decay_between,
    dot,
    in_halves,
    narrow,
    sigmoid,
    softplus,
)
from baton.kernels.triton.delta_update import UNIT_EPS
from baton.kernels.triton.kernel import kernel

# Decays of a block of 16 tokens are moderate where no logarithm of one from its middle is larger,
# either way: a key or query times or over it is far from the largest float32.
MODERATE = tl.constexpr(60.0)


@triton.jit
def _rate_of(beta, A, place, inside):
    """Load the rates at which tokens are learnt: float32."""
    rate = tl.load(beta + place, mask=inside, other=0).to(tl.float32)
    return rate if A is None else sigmoid(rate)


@kernel
def accumulate(
    g,
    beta,
    A,
    dt_bias,
    logs,
    rests,
    rates,
    starts,
    g_stride,
    beta_stride,
    heads,
    width,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute, for some channels of one head of one chunk, cumulative log decays and the
    corrections' rates."""
    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    head = tl.program_id(1)
    chunk = tl.program_id(2)
    token = tl.load(starts + chunk) + tl.arange(0, CHUNK)
    inside = token < tl.load(starts + chunk + 1)
    in_block = inside[:, None] & (c < width)[None, :]
    log = tl.load(g + token[:, None] * g_stride + head * width + c[None, :], mask=in_block, other=0)
    log = log.to(tl.float32)
    if A is not None:
        log += tl.load(dt_bias + head * width + c, mask=c < width, other=0)[None, :]
        log = tl.load(A + head) * softplus(log)
    log = tl.where(in_block, log, 0.0)
    place = (token * heads + head)[:, None] * width + c[None, :]
    if rests is None:
        tl.store(logs + place, tl.cumsum(log, axis=0), mask=in_block)
    else:
        # Summed in float64: a long sum of logarithms would lose the small ones.
        summed, rest = in_halves(tl.cumsum(log.to(tl.float64), axis=0))
        tl.store(logs + place, summed, mask=in_block)
        tl.store(rests + place, rest, mask=in_block)
    if tl.program_id(0) == 0:
        rate = _rate_of(beta, A, token * beta_stride + head, inside)
        tl.store(rates + token * heads + head, rate, mask=inside)


@triton.jit
def _length(rows):
    """Return what makes rows [tokens, channels] of one length: [tokens] float32."""
    rows = rows.to(tl.float32)
    return tl.rsqrt(tl.sum(rows * rows, axis=1) + UNIT_EPS)


@kernel
def scores_of_heads(
    q,
    k,
    g,
    beta,
    A,
    dt_bias,
    rates,
    q_scores,
    k_scores,
    entering,
    leaving,
    reading,
    ends,
    starts,
    q_stride,
    k_stride,
    g_stride,
    beta_stride,
    heads,
    per_key_head,
    K: tl.constexpr,
    scale,
    BLOCK_K: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Compute one chunk's decays, rates and scores of one head that has one decay: products, then
    decays."""
    head = tl.program_id(0)
    chunk = tl.program_id(1).to(tl.int64)
    j, c = tl.arange(0, CHUNK), tl.arange(0, BLOCK_K)
    token = tl.load(starts + chunk) + j
    inside = token < tl.load(starts + chunk + 1)
    in_keys = inside[:, None] & (c < K)[None, :]
    key_head = head // per_key_head
    at = token[:, None] * k_stride + key_head * K + c[None, :]
    keys = tl.load(k + at, mask=in_keys, other=0.0)
    own_k = _length(keys)
    step = tl.load(g + token * g_stride + head, mask=inside, other=0).to(tl.float32)
    if A is not None:
        step = tl.load(A + head) * softplus(step + tl.load(dt_bias + head))
    # Summed in float64: a long sum of logarithms would lose the small ones.
    summed = tl.cumsum(tl.where(inside, step, 0.0).to(tl.float64), axis=0)
    log, rest = in_halves(summed)
    last_log, last_rest = in_halves(tl.min(summed, axis=0))
    decay = decay_between(log[:, None], rest[:, None], log[None, :], rest[None, :])
    decay *= own_k[None, :]
    place = (chunk * heads + head) * CHUNK * CHUNK + j[:, None] * CHUNK + j[None, :]
    products = dot(keys, tl.trans(keys)) * decay * own_k[:, None]
    tl.store(k_scores + place, products, mask=inside[:, None])
    at = token[:, None] * q_stride + key_head * K + c[None, :]
    queries = tl.load(q + at, mask=in_keys, other=0.0)
    own_q = _length(queries) * scale
    products = dot(queries, tl.trans(keys)) * decay * own_q[:, None]
    tl.store(q_scores + place, narrow(products, q_scores.dtype.element_ty), mask=inside[:, None])
    here = token * heads + head
    entered, left = tl.exp(log), decay_between(last_log, last_rest, log, rest)
    tl.store(entering + here, entered * own_k, mask=inside)
    tl.store(reading + here, entered * own_q, mask=inside)
    tl.store(leaving + here, left * own_k, mask=inside)
    rate = _rate_of(beta, A, token * beta_stride + head, inside)
    tl.store(rates + here, rate, mask=inside)
    tl.store(ends + chunk * heads + head, tl.exp(last_log))


@kernel
def scores_of_channels(
    q,
    k,
    logs,
    rests,
    q_scores,
    k_scores,
    entering,
    leaving,
    reading,
    ends,
    starts,
    q_stride,
    k_stride,
    heads,
    per_key_head,
    K: tl.constexpr,
    scale,
    BLOCK_K: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Compute one chunk's scores of one head where every key channel has its own decay.

    A pair of tokens is apart in two neighbouring blocks of 1, 2, 4, ... tokens, the later one in
    the second block. Both are decayed to the last token of the first block: the later one from it,
    the earlier one up to it. Neither factor exceeds one, and all pairs of blocks of one size are
    one product. So are all pairs inside blocks of 16 tokens where the decays there are moderate:
    both are decayed to the middle of their block, and factors may exceed one.
    """
    tl.static_assert(CHUNK == 64)
    head = tl.program_id(0)
    chunk = tl.program_id(1).to(tl.int64)
    j, c = tl.arange(0, CHUNK), tl.arange(0, BLOCK_K)
    start, end = tl.load(starts + chunk), tl.load(starts + chunk + 1)
    in_k = c < K
    inside = j < end - start
    in_keys = inside[:, None] & in_k[None, :]
    key_head = head // per_key_head
    k += start * k_stride + key_head * K
    q += start * q_stride + key_head * K
    keys = tl.load(k + j[:, None] * k_stride + c[None, :], mask=in_keys, other=0.0)
    queries = tl.load(q + j[:, None] * q_stride + c[None, :], mask=in_keys, other=0.0)
    dtype = k.dtype.element_ty
    own_k, own_q = _length(keys), _length(queries) * scale
    first = (start * heads + head) * K
    place = j[:, None] * (heads * K) + c[None, :]
    log = tl.load(logs + first + place, mask=in_keys, other=0.0)
    if rests is not None:
        rest = tl.load(rests + first + place, mask=in_keys, other=0.0)
    later, earlier = j[:, None], j[None, :]
    same = tl.sum(keys.to(tl.float32) * queries.to(tl.float32), axis=1)
    q_products = tl.where(later == earlier, same[:, None], 0.0)
    k_products = tl.zeros((CHUNK, CHUNK), tl.float32)
    middle = tl.minimum((j >> 4 << 4) + 7, (end - start - 1).to(tl.int32))
    at = middle[:, None] * (heads * K) + c[None, :]
    apart = log - tl.load(logs + first + at, mask=in_k[None, :], other=0.0)
    if rests is not None:
        apart += rest - tl.load(rests + first + at, mask=in_k[None, :], other=0.0)
    apart = tl.where(in_keys, apart, 0.0)
    moderate = tl.max(tl.abs(apart)) < MODERATE
    if moderate:
        decay = tl.exp(apart)
        columns = tl.trans(narrow(keys.to(tl.float32) / decay, dtype))
        pairs = (later >> 4 == earlier >> 4) & (later > earlier)
        decayed = narrow(keys.to(tl.float32) * decay, dtype)
        k_products = tl.where(pairs, dot(decayed, columns), k_products)
        decayed = narrow(queries.to(tl.float32) * decay, dtype)
        q_products = tl.where(pairs, dot(decayed, columns), q_products)
    for level in range(tl.where(moderate, 4, 0), 6):
        second = (j >> level) % 2 == 1
        between = (j >> level + 1 << level + 1) + (1 << level) - 1
        known = (between < end - start)[:, None] & in_k[None, :]
        at = between[:, None] * (heads * K) + c[None, :]
        apart = log - tl.load(logs + first + at, mask=known, other=0.0)
        if rests is not None:
            apart += rest - tl.load(rests + first + at, mask=known, other=0.0)
        decay = tl.exp(tl.minimum(tl.where(second[:, None], apart, -apart), 0.0))
        pairs = (later >> level == (earlier >> level) + 1) & second[:, None]
        decayed = narrow(keys.to(tl.float32) * decay, dtype)
        columns = tl.trans(decayed)
        k_products = tl.where(pairs, dot(decayed, columns), k_products)
        decayed = narrow(queries.to(tl.float32) * decay, dtype)
        q_products = tl.where(pairs, dot(decayed, columns), q_products)
    scores = (chunk * heads + head) * CHUNK * CHUNK + later * CHUNK + earlier
    k_products *= own_k[:, None] * own_k[None, :]
    tl.store(k_scores + scores, k_products, mask=inside[:, None])
    q_products *= own_q[:, None] * own_k[None, :]
    rounded = narrow(q_products, q_scores.dtype.element_ty)
    tl.store(q_scores + scores, rounded, mask=inside[:, None])
    last = (end - 1 - start) * (heads * K) + c
    last_log = tl.load(logs + first + last, mask=in_k, other=0.0)
    left = last_log[None, :] - log
    if rests is not None:
        left += tl.load(rests + first + last, mask=in_k, other=0.0)[None, :] - rest
    left = tl.exp(tl.minimum(left, 0.0))
    entered = tl.exp(log)
    unit_k, unit_q = keys.to(tl.float32) * own_k[:, None], queries.to(tl.float32) * own_q[:, None]
    tl.store(entering + first + place, narrow(unit_k * entered, dtype), mask=in_keys)
    tl.store(leaving + first + place, narrow(unit_k * left, dtype), mask=in_keys)
    tl.store(reading + first + place, narrow(unit_q * entered, dtype), mask=in_keys)
    tl.store(ends + (chunk * heads + head) * K + c, tl.exp(last_log), mask=in_k)
