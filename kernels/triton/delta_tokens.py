"""The gated delta rule over several tokens a row on a GPU; see baton.kernels.verify.

As in baton.kernels.triton.state_tokens, a state is loaded once, and rounded to the pool's dtype
between two tokens.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.delta_mixer import DeltaLayers, DeltaWeights
from baton.kernels.triton.arithmetic import narrow, sigmoid
from baton.kernels.triton.branches import is_last
from baton.kernels.triton.delta_update import advance, decay_of, delta_block, unit
from baton.kernels.triton.kernel import kernel
from baton.kernels.triton.shapes import packed
from baton.kernels.verify import Accepted


def verify_deltas(
    weights: DeltaWeights,
    conv: Tensor,
    b: Tensor,
    a: Tensor,
    pool: Tensor,
    read_slots: Tensor,
    has_initial: Tensor | None,
    nodes: Tensor | None = None,
) -> Tensor:
    """Compute the outputs of Q tokens a row, in one launch; the pool is not written.

    conv: [B Q, C] float, q k v after the convolution. b, a: as of DeltaInputs
    nodes: as in gated_conv_verify; each path of a tree is stepped through from the row's state
    returns [B Q, Hv, V], dtype of conv
    """
    q, k, v = weights.split_conv(conv)
    tokens, heads, V = v.shape
    out = torch.empty_like(v, memory_format=torch.contiguous_format)
    if tokens == 0:
        return out
    rows, K = read_slots.shape[0], weights.key_dim
    height, width = delta_block(K, V)
    _verify_deltas[(rows, triton.cdiv(V, width), heads)](
        packed(q), packed(k), packed(v), packed(a), packed(b), packed(pool), read_slots,
        has_initial, weights.A, weights.dt_bias, nodes, out,
        conv.stride(0), a.stride(0), b.stride(0), pool.stride(0),
        heads, heads // weights.key_heads, K, V, K**-0.5, tokens // rows,
        CHANNELS=a.shape[1] != b.shape[1], BLOCK_K=height, BLOCK_V=width, num_warps=4,
    )  # fmt: skip
    return out


def commit_deltas(
    weights: DeltaLayers, conv: Tensor, b: Tensor, a: Tensor, pool: Tensor, accepted: Accepted
) -> None:
    """Write the states behind the accepted tokens of L layers, in one launch.

    conv: [L, B Q, C] float, q k v after the convolution. b, a: [L, B Q, n] float, as of
          DeltaInputs. All strided over layers and tokens, alike
    pool: [L, slots, Hv, K, V] float, strided over layers and slots
    """
    rows, (layers, tokens, _) = accepted.counts.shape[0], conv.shape
    if rows == 0:
        return
    sizes = weights.each[0]
    heads, K, V = sizes.heads, sizes.key_dim, sizes.value_dim
    keys = sizes.key_heads * K
    height, width = delta_block(K, V)
    width = max(1, width // 2)  # whole ones spill registers here
    _commit_deltas[(rows, triton.cdiv(V, width), heads * layers)](
        packed(conv[..., keys:], 2), packed(conv[..., 2 * keys :], 2), packed(a, 2), packed(b, 2),
        packed(pool, 2), *accepted, weights.A, weights.dt_bias, *pool.stride()[:2],
        *conv.stride()[:2], heads, heads // sizes.key_heads, K, V, tokens // rows,
        CHANNELS=a.shape[2] != b.shape[2], BLOCK_K=height, BLOCK_V=width, num_warps=4,
    )  # fmt: skip


@triton.jit
def _verify_token(
    state, pool, q, k, v, g, beta, out, A, dt_bias, at, head, heads, keys, i, j, in_k, in_v,
    conv_stride, g_stride, beta_stride, K, V, scale, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Write the output of one token, and return the state behind it. at: of all tokens"""
    key = tl.load(k + at * conv_stride + keys, mask=in_k, other=0.0).to(tl.float32)
    query = tl.load(q + at * conv_stride + keys, mask=in_k, other=0.0).to(tl.float32)
    value = tl.load(v + at * conv_stride + head * V + j, mask=in_v, other=0.0).to(tl.float32)
    key, query = unit(key, 0), unit(query, 0) * scale
    rate = sigmoid(tl.load(beta + at * beta_stride + head).to(tl.float32))
    log = decay_of(g + at * g_stride, A, dt_bias, head, i, in_k, K, CHANNELS)
    state = advance(state, key, value, log, rate, CHANNELS)
    read = tl.sum(state * query[:, None], axis=0)
    read = narrow(read, out.dtype.element_ty)
    tl.store(out + (at * heads + head) * V + j, read, mask=in_v)
    return narrow(state, pool.dtype.element_ty).to(tl.float32)


@kernel
def _verify_deltas(
    q,
    k,
    v,
    g,
    beta,
    pool,
    read_slots,
    has_initial,
    A,
    dt_bias,
    nodes,
    out,
    conv_stride,
    g_stride,
    beta_stride,
    slot_stride,
    heads,
    per_key_head,
    K,
    V,
    scale,
    tokens,
    CHANNELS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Step some columns of the state of one head of one row through all tokens."""
    row = tl.program_id(0).to(tl.int64)
    i, j = tl.arange(0, BLOCK_K), tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    head = tl.program_id(2)
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

    keys = (head // per_key_head) * K + i
    if nodes is None:
        for token in range(tokens):
            state = _verify_token(
                state, pool, q, k, v, g, beta, out, A, dt_bias, row * tokens + token, head, heads,
                keys, i, j, in_k, in_v, conv_stride, g_stride, beta_stride, K, V, scale, CHANNELS,
            )  # fmt: skip
    else:
        begun, nodes = state, nodes + row * tokens
        for last in range(tokens):
            if is_last(nodes, last, tokens):
                path = tl.load(nodes + last)
                state = begun
                for token in range(last + 1):
                    if (path >> token) & 1 != 0:
                        state = _verify_token(
                            state, pool, q, k, v, g, beta, out, A, dt_bias, row * tokens + token,
                            head, heads, keys, i, j, in_k, in_v, conv_stride, g_stride,
                            beta_stride, K, V, scale, CHANNELS,
                        )  # fmt: skip


@kernel
def _commit_deltas(
    k,
    v,
    g,
    beta,
    pool,
    read_slots,
    write_slots,
    has_initial,
    accepted,
    track_slots,
    track_counts,
    A,
    dt_bias,
    pool_layer,
    slot_stride,
    kept_layer,
    kept_stride,
    heads,
    per_key_head,
    K,
    V,
    tokens,
    CHANNELS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Step some columns of the state of one head of one row of one layer through its accepted
    tokens, and write them. A thread writes what it has read, so a slot that is read and written
    needs no barrier."""
    row = tl.program_id(0).to(tl.int64)
    i, j = tl.arange(0, BLOCK_K), tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    layer = tl.program_id(2) // heads
    head = tl.program_id(2) - layer * heads
    A += layer * heads
    dt_bias += layer * heads * (K if CHANNELS else 1)
    layer = layer.to(tl.int64)
    pool += layer * pool_layer
    k += layer * kept_layer
    v += layer * kept_layer
    g += layer * kept_layer
    beta += layer * kept_layer
    in_k, in_v = i < K, j < V
    inside = in_k[:, None] & in_v[None, :]
    place = (head * K + i)[:, None] * V + j[None, :]
    count, tracked = tl.load(accepted + row), tl.load(track_counts + row)

    started = True
    if has_initial is not None:
        started = tl.load(has_initial + row) != 0
    state = tl.zeros((BLOCK_K, BLOCK_V), tl.float32)
    if started & (count > 0):
        source = pool + tl.load(read_slots + row) * slot_stride
        state = tl.load(source + place, mask=inside, other=0.0).to(tl.float32)

    keys = (head // per_key_head) * K + i
    for token in range(count):
        at = row * tokens + token
        key = tl.load(k + at * kept_stride + keys, mask=in_k, other=0.0).to(tl.float32)
        value = tl.load(v + at * kept_stride + head * V + j, mask=in_v, other=0.0).to(tl.float32)
        rate = sigmoid(tl.load(beta + at * kept_stride + head).to(tl.float32))
        log = decay_of(g + at * kept_stride, A, dt_bias, head, i, in_k, K, CHANNELS)
        state = advance(state, unit(key, 0), value, log, rate, CHANNELS)
        rounded = narrow(state, pool.dtype.element_ty)
        if token + 1 == tracked:
            target = pool + tl.load(track_slots + row) * slot_stride
            tl.store(target + place, rounded, mask=inside)
        state = rounded.to(tl.float32)
    if count > 0:
        target = pool + tl.load(write_slots + row) * slot_stride
        tl.store(target + place, state.to(pool.dtype.element_ty), mask=inside)
