"""The decode step of the gated delta rule on a GPU; see baton.kernels.gated_delta."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.triton.arithmetic import narrow, sigmoid, softplus
from baton.kernels.triton.kernel import kernel
from baton.kernels.triton.shapes import block, packed

UNIT_EPS = tl.constexpr(1e-6)
# Values of a state that one program holds: four warps keep them in 64 registers a thread.
_STATE_BLOCK = 8192


def delta_block(K: int, V: int) -> tuple[int, int]:
    """Return how much of a head's state [K, V] one program holds: some of its columns."""
    height = block(K)
    return height, min(block(V), max(1, _STATE_BLOCK // height))


def gated_delta_update(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    pool: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    has_initial: Tensor | None = None,
    decay: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Compute baton.kernels.gated_delta.gated_delta_update.

    decay: A [Hv] and dt_bias [Hv] or [Hv K] float32; then g and beta are what the projections give,
           before A softplus(g + dt_bias) and sigmoid(beta), which are taken here
    """
    rows, heads, V = v.shape
    key_heads, K = k.shape[1:]
    out = torch.empty_like(v, memory_format=torch.contiguous_format)
    if rows == 0:
        return out
    A, dt_bias = decay if decay is not None else (None, None)
    height, width = delta_block(K, V)
    _delta_update[(triton.cdiv(V, width), heads, rows)](
        packed(q), packed(k), packed(v), packed(g), packed(beta), packed(pool),
        read_slots, write_slots, has_initial, A, dt_bias, out,
        q.stride(0), k.stride(0), v.stride(0), g.stride(0), beta.stride(0), pool.stride(0),
        heads, heads // key_heads, K, V, K**-0.5,
        CHANNELS=g.numel() != beta.numel(), BLOCK_K=height, BLOCK_V=width, num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def unit(x, axis: tl.constexpr):
    """Scale float32 to length one along an axis, which is kept."""
    return x * tl.rsqrt(tl.sum(x * x, axis=axis, keep_dims=True) + UNIT_EPS)


@triton.jit
def advance(state, key, value, log, rate, CHANNELS: tl.constexpr):
    """Advance columns of a float32 state [K, V] by one token: key [K] of length one, value [V], the
    logarithm of the decay, [K] or one number, and the learning rate."""
    if CHANNELS:
        state = state * tl.exp(log)[:, None]
    else:
        state = state * tl.exp(log)
    correction = (value - tl.sum(state * key[:, None], axis=0)) * rate
    return state + key[:, None] * correction[None, :]


@triton.jit
def decay_of(g, A, dt_bias, head, i, in_k, K, CHANNELS: tl.constexpr):
    """Return the logarithm of a token's decay, from what its projection gives at `g`."""
    if CHANNELS:
        log = tl.load(g + head * K + i, mask=in_k, other=0.0).to(tl.float32)
        log += tl.load(dt_bias + head * K + i, mask=in_k, other=0.0)
    else:
        log = tl.load(g + head).to(tl.float32) + tl.load(dt_bias + head)
    return tl.load(A + head) * softplus(log)


@kernel
def _delta_update(
    q,
    k,
    v,
    g,
    beta,
    pool,
    read_slots,
    write_slots,
    has_initial,
    A,
    dt_bias,
    out,
    q_stride,
    k_stride,
    v_stride,
    g_stride,
    beta_stride,
    slot_stride,
    heads,
    per_key_head,
    K,
    V,
    scale,
    CHANNELS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Advance some columns of the state of one head of one row."""
    head = tl.program_id(1)
    row = tl.program_id(2).to(tl.int64)
    i, j = tl.arange(0, BLOCK_K), tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    in_k, in_v = i < K, j < V
    inside = in_k[:, None] & in_v[None, :]
    place = (head * K + i)[:, None] * V + j[None, :]

    started = True
    if has_initial is not None:
        started = tl.load(has_initial + row) != 0
    state = tl.zeros((BLOCK_K, BLOCK_V), tl.float32)
    if started:
        source = pool + tl.load(read_slots + row) * slot_stride
        state = tl.load(source + place, mask=inside, other=0.0).to(tl.float32)

    key_head = head // per_key_head
    key = tl.load(k + row * k_stride + key_head * K + i, mask=in_k, other=0.0).to(tl.float32)
    query = tl.load(q + row * q_stride + key_head * K + i, mask=in_k, other=0.0).to(tl.float32)
    key, query = unit(key, 0), unit(query, 0) * scale
    value = tl.load(v + row * v_stride + head * V + j, mask=in_v, other=0.0).to(tl.float32)
    rate = tl.load(beta + row * beta_stride + head).to(tl.float32)
    if A is not None:
        log = decay_of(g + row * g_stride, A, dt_bias, head, i, in_k, K, CHANNELS)
        rate = sigmoid(rate)
    elif CHANNELS:
        log = tl.load(g + row * g_stride + head * K + i, mask=in_k, other=0.0).to(tl.float32)
    else:
        log = tl.load(g + row * g_stride + head).to(tl.float32)
    state = advance(state, key, value, log, rate, CHANNELS)
    target = pool + tl.load(write_slots + row) * slot_stride
    tl.store(target + place, narrow(state, pool.dtype.element_ty), mask=inside)
    read = tl.sum(state * query[:, None], axis=0)
    read = narrow(read, out.dtype.element_ty)
    tl.store(out + (row * heads + head) * V + j, read, mask=in_v)
