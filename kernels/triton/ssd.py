"""The state-space-dual scan on a GPU, in four launches; see baton.kernels.ssd.

Steps and cumulative logarithms of the decays; the state that every chunk builds from nothing; the
states passed from chunk to chunk, which end in the pool; the outputs. Products of bfloat16 inputs
are taken in bfloat16 and summed in float32; states, decays and sums are float32 throughout, and
cumulative logarithms two float32 values, whose sum they are.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.triton.arithmetic import decay_between, discretise, dot, in_halves, narrow
from baton.kernels.triton.kernel import kernel
from baton.kernels.triton.prompt_chunks import PromptChunks
from baton.kernels.triton.shapes import SMALLEST_DOT, block, packed

# States between chunks are the larger part of the memory traffic, so chunks are long.
_LONGEST_CHUNK = 256
_PASSED = 1024  # values of a state that one program passes on
_HEADS = 8  # of one program of the first launch


def chunk_tokens(chunk_size: int) -> int:
    """Return the tokens of a computed chunk for a model whose chunks have `chunk_size`."""
    return chunk_size if chunk_size <= _LONGEST_CHUNK else math.gcd(chunk_size, _LONGEST_CHUNK)


def ssd_prompts(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    dt_bias: Tensor,
    dt_limit: tuple[float, float],
    ssm_pool: Tensor,
    chunks: PromptChunks,
) -> Tensor:
    """Compute baton.kernels.ssd.ssd_prefill, with the batch's rows, chunks and snapshots in
    `chunks`."""
    tokens, H, P = x.shape
    G, N = B.shape[1:]
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    step, logs, rests = (x.new_empty((H, tokens), dtype=torch.float32) for _ in range(3))
    states = x.new_empty((chunks.count, H, P, N), dtype=torch.float32)
    decays = x.new_empty((chunks.count, H), dtype=torch.float32)
    height, width = block(P, SMALLEST_DOT), block(N, SMALLEST_DOT)
    wide = x.dtype == torch.float32
    inner = 32 if wide else 64  # tokens of one product
    sizes = {"P": P, "N": N, "BLOCK_P": height, "BLOCK_N": width}
    strides = (x.stride(0), B.stride(0))
    if tokens:
        length = block(chunks.size, SMALLEST_DOT)
        _discretise[(triton.cdiv(H, _HEADS), chunks.count)](
            packed(dt), A, dt_bias, step, logs, rests, decays, chunks.starts,
            *dt_limit, dt.stride(0), tokens, H,
            LENGTH=length, HEADS=_HEADS, num_warps=4,
        )  # fmt: skip
        _chunk_states[(H, chunks.count)](
            packed(x), packed(B), step, logs, rests, states, chunks.starts,
            *strides, tokens, H, H // G,
            **sizes, TOKENS=min(inner, length), num_warps=8 if height * width > 8192 else 4,
        )  # fmt: skip
    per_state = P * N
    _pass_states[(triton.cdiv(per_state, _PASSED), H, chunks.read_slots.shape[0])](
        states, decays, packed(ssm_pool), chunks.row_chunks, chunks.slots,
        chunks.read_slots, chunks.write_slots, chunks.has_initial,
        ssm_pool.stride(0), H, per_state,
        BLOCK=_PASSED, num_warps=4,
    )  # fmt: skip
    if tokens:
        rows = min(inner, length)
        _outputs[(triton.cdiv(chunks.size, rows), H, chunks.count)](
            x, B, packed(C), D, step, logs, rests, states, y, chunks.starts,
            *strides, C.stride(0), tokens, H, H // G,
            **sizes, ROWS=rows, num_warps=8 if wide else 4, num_stages=2,
        )  # fmt: skip
    return y


@kernel
def _discretise(
    dt,
    A,
    dt_bias,
    step,
    log_decay,
    rests,
    decays,
    starts,
    low,
    high,
    dt_stride,
    tokens,
    H,
    LENGTH: tl.constexpr,
    HEADS: tl.constexpr,
):
    """Compute, for some heads of one chunk, step, and log_decay and its rests [H, T], and the whole
    chunk's decay."""
    head = tl.program_id(0) * HEADS + tl.arange(0, HEADS)
    chunk = tl.program_id(1).to(tl.int64)
    start, end = tl.load(starts + chunk), tl.load(starts + chunk + 1)
    token = start + tl.arange(0, LENGTH)
    in_h = head < H
    inside = in_h[:, None] & (token < end)[None, :]
    raw = tl.load(dt + token[None, :] * dt_stride + head[:, None], mask=inside, other=0.0)
    bias = tl.load(dt_bias + head, mask=in_h, other=0.0)
    size = discretise(raw.to(tl.float32), bias[:, None], low, high)
    size = tl.where(inside, size, 0.0)
    rate = tl.load(A + head, mask=in_h, other=0.0)
    # Summed in float64: a long sum of logarithms would lose the small ones.
    logs, rest = in_halves(tl.cumsum((size * rate[:, None]).to(tl.float64), axis=1))
    place = head.to(tl.int64)[:, None] * tokens + token[None, :]
    tl.store(step + place, size, mask=inside)
    tl.store(log_decay + place, logs, mask=inside)
    tl.store(rests + place, rest, mask=inside)
    last = tl.min(tl.where(inside, logs, 0.0), axis=1)  # they only fall
    tl.store(decays + chunk * H + head, tl.exp(last), mask=in_h)


@kernel
def _chunk_states(
    x,
    B,
    step,
    log_decay,
    rests,
    states,
    starts,
    x_stride,
    B_stride,
    tokens,
    H,
    per_group,
    P: tl.constexpr,
    N: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Compute the state [P, N] that one chunk of one head builds from nothing."""
    head = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1).to(tl.int64)
    start, end = tl.load(starts + chunk), tl.load(starts + chunk + 1)
    p, n = tl.arange(0, BLOCK_P), tl.arange(0, BLOCK_N)
    in_p, in_n = p < P, n < N
    group = head // per_group
    last = tl.load(log_decay + head * tokens + end - 1)
    last_rest = tl.load(rests + head * tokens + end - 1)
    state = tl.zeros((BLOCK_P, BLOCK_N), tl.float32)
    for first in range(start, end, TOKENS):
        token = first + tl.arange(0, TOKENS)
        inside = token < end
        logs = tl.load(log_decay + head * tokens + token, mask=inside, other=0.0)
        rest = tl.load(rests + head * tokens + token, mask=inside, other=0.0)
        size = tl.load(step + head * tokens + token, mask=inside, other=0.0)
        weight = tl.where(inside, decay_between(last, last_rest, logs, rest) * size, 0.0)
        values = tl.load(
            x + token[:, None] * x_stride + head * P + p[None, :],
            mask=inside[:, None] & in_p[None, :],
            other=0.0,
        )
        b = tl.load(
            B + token[:, None] * B_stride + group * N + n[None, :],
            mask=inside[:, None] & in_n[None, :],
            other=0.0,
        )
        weighted = narrow(values.to(tl.float32) * weight[:, None], values.dtype)
        state += dot(tl.trans(weighted), b)
    place = ((chunk * H + head) * P + p)[:, None] * N + n[None, :]
    tl.store(states + place, state, mask=in_p[:, None] & in_n[None, :])


@kernel
def _pass_states(
    states,
    decays,
    pool,
    row_chunks,
    slots,
    read_slots,
    write_slots,
    has_initial,
    slot_stride,
    H,
    per_state,
    BLOCK: tl.constexpr,
):
    """Pass part of one head's state through one row: states becomes what enters each chunk;
    snapshots and the final state go to the pool.

    `state` has the layout of the pool's loads, and so of its dtype: threads store to `states`
    where others have loaded.
    """
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    head = tl.program_id(1).to(tl.int64)
    row = tl.program_id(2)
    inside = offset < per_state
    part = head * per_state + offset
    state = tl.zeros((BLOCK,), tl.float32)
    if tl.load(has_initial + row) != 0:
        source = pool + tl.load(read_slots + row) * slot_stride
        state = tl.load(source + part, mask=inside, other=0.0).to(tl.float32)
    for chunk in range(tl.load(row_chunks + row), tl.load(row_chunks + row + 1)):
        here = states + chunk * H * per_state + part
        built = tl.load(here, mask=inside, other=0.0)
        tl.debug_barrier()
        tl.store(here, state, mask=inside)
        state = state * tl.load(decays + chunk * H + head) + built
        slot = tl.load(slots + chunk)
        if slot > 0:
            rounded = narrow(state, pool.dtype.element_ty)
            tl.store(pool + slot * slot_stride + part, rounded, mask=inside)
    rounded = narrow(state, pool.dtype.element_ty)
    tl.store(pool + tl.load(write_slots + row) * slot_stride + part, rounded, mask=inside)


@kernel
def _outputs(
    x,
    B,
    C,
    D,
    step,
    log_decay,
    rests,
    states,
    y,
    starts,
    x_stride,
    B_stride,
    C_stride,
    tokens,
    H,
    per_group,
    P: tl.constexpr,
    N: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Compute the outputs [ROWS, P] of some tokens of one chunk of one head."""
    head = tl.program_id(1).to(tl.int64)
    chunk = tl.program_id(2).to(tl.int64)
    start, end = tl.load(starts + chunk), tl.load(starts + chunk + 1)
    begin = start + tl.program_id(0) * ROWS
    if begin < end:
        token = begin + tl.arange(0, ROWS)
        inside = token < end
        p, n = tl.arange(0, BLOCK_P), tl.arange(0, BLOCK_N)
        in_p, in_n = p < P, n < N
        group = head // per_group
        logs = tl.load(log_decay + head * tokens + token, mask=inside, other=0.0)[:, None]
        rest = tl.load(rests + head * tokens + token, mask=inside, other=0.0)[:, None]
        c = tl.load(
            C + token[:, None] * C_stride + group * N + n[None, :],
            mask=inside[:, None] & in_n[None, :],
            other=0.0,
        )
        place = ((chunk * H + head) * P + p)[None, :] * N + n[:, None]
        entry = tl.load(states + place, mask=in_p[None, :] & in_n[:, None], other=0.0)
        out = dot(c, narrow(entry, c.dtype)) * tl.exp(logs)
        for first in range(start, begin + ROWS, ROWS):
            source = first + tl.arange(0, ROWS)
            in_s = source < end
            source_logs = tl.load(log_decay + head * tokens + source, mask=in_s, other=0.0)[None, :]
            source_rest = tl.load(rests + head * tokens + source, mask=in_s, other=0.0)[None, :]
            size = tl.load(step + head * tokens + source, mask=in_s, other=0.0)
            b = tl.load(
                B + source[None, :] * B_stride + group * N + n[:, None],
                mask=in_s[None, :] & in_n[:, None],
                other=0.0,
            )
            values = tl.load(
                x + source[:, None] * x_stride + head * P + p[None, :],
                mask=in_s[:, None] & in_p[None, :],
                other=0.0,
            )
            decay = decay_between(logs, rest, source_logs, source_rest)
            seen = (token[:, None] >= source[None, :]) & in_s[None, :]
            scores = tl.where(seen, dot(c, b) * decay * size[None, :], 0.0)
            out += dot(narrow(scores, values.dtype), values)
        own = x + token[:, None] * x_stride + head * P + p[None, :]
        stored = inside[:, None] & in_p[None, :]
        skip = tl.load(own, mask=stored, other=0.0).to(tl.float32)
        out = narrow(out + skip * tl.load(D + head), y.dtype.element_ty)
        tl.store(y + (token[:, None] * H + head) * P + p[None, :], out, mask=stored)
