"""The Mamba-2 recurrence over several tokens a row on a GPU; see baton.kernels.verify.

A program loads its part of a state once and steps through the tokens in registers, by the functions
of the decode step. Between two tokens it rounds the state to the pool's dtype, as single steps do.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.mamba2 import Mamba2Layers, Mamba2Weights
from baton.kernels.triton.arithmetic import narrow
from baton.kernels.triton.branches import is_last
from baton.kernels.triton.kernel import kernel
from baton.kernels.triton.shapes import packed
from baton.kernels.triton.state_update import advance, read_out, state_block
from baton.kernels.verify import Accepted


def verify_states(
    weights: Mamba2Weights,
    conv: Tensor,
    dt: Tensor,
    ssm_pool: Tensor,
    read_slots: Tensor,
    has_initial: Tensor | None,
    nodes: Tensor | None = None,
) -> Tensor:
    """Compute the outputs of Q tokens a row, in one launch; the pool is not written.

    conv: [B Q, C] float, x B C after the convolution. dt: [B Q, H] float
    nodes: as in gated_conv_verify; each path of a tree is stepped through from the row's state
    returns [B Q, H, P], dtype of conv
    """
    x, B, C = weights.split_conv(conv)
    tokens, H, P = x.shape
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if tokens == 0:
        return y
    rows = read_slots.shape[0]
    height, width = state_block(P, weights.d_state)
    _verify_states[(rows, triton.cdiv(P, height), H)](
        packed(ssm_pool), read_slots, has_initial, packed(x), packed(dt), weights.A, packed(B),
        packed(C), weights.D, weights.dt_bias, nodes, y, *weights.dt_limit, ssm_pool.stride(0),
        conv.stride(0), dt.stride(0), H, H // weights.groups, P, weights.d_state, tokens // rows,
        BLOCK_P=height, BLOCK_N=width, num_warps=4,
    )  # fmt: skip
    return y


def commit_states(
    weights: Mamba2Layers, conv: Tensor, dt: Tensor, ssm_pool: Tensor, accepted: Accepted
) -> None:
    """Write the states behind the accepted tokens of L layers, in one launch.

    conv: [L, B Q, C] float, x B C after the convolution. dt: [L, B Q, H] float. Both strided over
          layers and tokens, alike
    ssm_pool: [L, slots, H, P, N] float, strided over layers and slots
    """
    rows, (layers, tokens, _) = accepted.counts.shape[0], conv.shape
    if rows == 0:
        return
    sizes = weights.each[0]
    H, P, N = sizes.heads, sizes.head_dim, sizes.d_state
    height, width = state_block(P, N)
    _commit_states[(rows, triton.cdiv(P, height), H * layers)](
        packed(ssm_pool, 2), *accepted, packed(conv, 2), packed(dt, 2), weights.A,
        packed(conv[..., H * P :], 2), weights.dt_bias, *sizes.dt_limit, *ssm_pool.stride()[:2],
        *conv.stride()[:2], H, H // sizes.groups, P, N, tokens // rows,
        BLOCK_P=height, BLOCK_N=width, num_warps=4,
    )  # fmt: skip


@triton.jit
def _verify_token(
    state, pool, x, dt, B, C, y, decay, bias, skip, low, high, at, head, group, p, n, in_p, in_n,
    conv_stride, dt_stride, H, P,
):  # fmt: skip
    """Write the output of one token, and return the state behind it. at: of all tokens"""
    raw = tl.load(dt + at * dt_stride + head).to(tl.float32)
    b = tl.load(B + at * conv_stride + group + n, mask=in_n, other=0.0).to(tl.float32)
    c = tl.load(C + at * conv_stride + group + n, mask=in_n, other=0.0).to(tl.float32)
    value = tl.load(x + at * conv_stride + head * P + p, mask=in_p, other=0.0).to(tl.float32)
    state = advance(state, value, raw, b, decay, bias, low, high)
    out = narrow(read_out(state, value, c, skip), y.dtype.element_ty)
    tl.store(y + (at * H + head) * P + p, out, mask=in_p)
    return narrow(state, pool.dtype.element_ty).to(tl.float32)


@kernel
def _verify_states(
    pool,
    read_slots,
    has_initial,
    x,
    dt,
    A,
    B,
    C,
    D,
    dt_bias,
    nodes,
    y,
    low,
    high,
    slot_stride,
    conv_stride,
    dt_stride,
    H,
    per_group,
    P,
    N,
    tokens,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Step one block of P of one head of one row through all tokens."""
    row = tl.program_id(0).to(tl.int64)
    p = tl.program_id(1) * BLOCK_P + tl.arange(0, BLOCK_P)
    head = tl.program_id(2)
    n = tl.arange(0, BLOCK_N)
    in_p, in_n = p < P, n < N
    inside = in_p[:, None] & in_n[None, :]
    place = (head * P + p)[:, None] * N + n[None, :]

    started = True
    if has_initial is not None:
        started = tl.load(has_initial + row) != 0
    state = tl.zeros((BLOCK_P, BLOCK_N), tl.float32)
    if started:
        source = pool + tl.load(read_slots + row) * slot_stride
        state = tl.load(source + place, mask=inside, other=0.0).to(tl.float32)

    decay, bias, skip = tl.load(A + head), tl.load(dt_bias + head), tl.load(D + head)
    group = (head // per_group) * N
    if nodes is None:
        for token in range(tokens):
            state = _verify_token(
                state, pool, x, dt, B, C, y, decay, bias, skip, low, high, row * tokens + token,
                head, group, p, n, in_p, in_n, conv_stride, dt_stride, H, P,
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
                            state, pool, x, dt, B, C, y, decay, bias, skip, low, high,
                            row * tokens + token, head, group, p, n, in_p, in_n, conv_stride,
                            dt_stride, H, P,
                        )  # fmt: skip


@kernel
def _commit_states(
    pool,
    read_slots,
    write_slots,
    has_initial,
    accepted,
    track_slots,
    track_counts,
    x,
    dt,
    A,
    B,
    dt_bias,
    low,
    high,
    pool_layer,
    slot_stride,
    kept_layer,
    kept_stride,
    H,
    per_group,
    P,
    N,
    tokens,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Step one block of P of one head of one row of one layer through its accepted tokens, and
    write it. A thread writes what it has read, so a slot that is read and written needs no
    barrier."""
    row = tl.program_id(0).to(tl.int64)
    p = tl.program_id(1) * BLOCK_P + tl.arange(0, BLOCK_P)
    layer = tl.program_id(2) // H
    head = tl.program_id(2) - layer * H
    at_layer = layer * H + head  # of what has a value a head
    layer = layer.to(tl.int64)
    pool += layer * pool_layer
    x += layer * kept_layer
    dt += layer * kept_layer
    B += layer * kept_layer
    n = tl.arange(0, BLOCK_N)
    in_p, in_n = p < P, n < N
    inside = in_p[:, None] & in_n[None, :]
    place = (head * P + p)[:, None] * N + n[None, :]
    count, tracked = tl.load(accepted + row), tl.load(track_counts + row)

    started = True
    if has_initial is not None:
        started = tl.load(has_initial + row) != 0
    state = tl.zeros((BLOCK_P, BLOCK_N), tl.float32)
    if started & (count > 0):
        source = pool + tl.load(read_slots + row) * slot_stride
        state = tl.load(source + place, mask=inside, other=0.0).to(tl.float32)

    decay, bias = tl.load(A + at_layer), tl.load(dt_bias + at_layer)
    group = (head // per_group) * N
    for token in range(count):
        at = row * tokens + token
        raw = tl.load(dt + at * kept_stride + head).to(tl.float32)
        b = tl.load(B + at * kept_stride + group + n, mask=in_n, other=0.0).to(tl.float32)
        value = tl.load(x + at * kept_stride + head * P + p, mask=in_p, other=0.0).to(tl.float32)
        state = advance(state, value, raw, b, decay, bias, low, high)
        rounded = narrow(state, pool.dtype.element_ty)
        if token + 1 == tracked:
            target = pool + tl.load(track_slots + row) * slot_stride
            tl.store(target + place, rounded, mask=inside)
        state = rounded.to(tl.float32)
    if count > 0:
        target = pool + tl.load(write_slots + row) * slot_stride
        tl.store(target + place, state.to(pool.dtype.element_ty), mask=inside)
