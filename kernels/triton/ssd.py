"""The state-space-dual scan on a GPU, in three launches; see baton.kernels.ssd.

Steps, cumulative logarithms of the decays, and what is left at a chunk's end of each of its tokens;
the states, taken from chunk to chunk in registers, of which each chunk's first is kept for the
outputs, and the last goes to the pool; the outputs. Products of bfloat16 inputs are taken in
bfloat16 and summed in float32; states, decays and sums are float32 throughout, and cumulative
logarithms two float32 values, whose sum they are. A state is rounded only where it is multiplied.
"""

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.triton.arithmetic import discretise, dot, in_halves, narrow
from baton.kernels.triton.kernel import kernel
from baton.kernels.triton.prompt_chunks import PromptChunks
from baton.kernels.triton.shapes import SMALLEST_DOT, block, packed

LOG2_E = tl.constexpr(1.4426950408889634)
# Shorter chunks write more states, longer ones multiply more pairs of tokens.
_LONGEST_CHUNK = 128
_DISCRETISED = 8  # heads of one program of the first launch
_HEADS = 8  # of one program of the outputs, which share the products of C and B
_KEYS = 64  # tokens of one product of the outputs
_WARPS = 8


@dataclass(frozen=True)
class _Tiles:
    """The sizes of programs, and how many tiles they have in memory at once."""

    columns: int  # of the N channels of a state that one program passes on
    rows: int  # tokens whose outputs one program computes
    stages: tuple[int, int]  # of the states, and of the outputs


_NARROW = _Tiles(128, 128, (3, 2))
_WIDE = _Tiles(64, 64, (1, 1))  # float32


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
    *logs, left = (x.new_empty((H, tokens), dtype=torch.float32) for _ in range(5))
    decays = x.new_empty((chunks.count, H), dtype=torch.float32)
    entries = x.new_empty((chunks.count, H, N, P))
    length = block(chunks.size, SMALLEST_DOT)
    tiles = _WIDE if x.dtype == torch.float32 else _NARROW
    height, width = block(P, SMALLEST_DOT), block(N, SMALLEST_DOT)
    sizes = {"P": P, "N": N, "BLOCK_P": height, "LENGTH": length}
    strides = (x.stride(0), B.stride(0))
    if tokens:
        _discretise[(triton.cdiv(H, _DISCRETISED), chunks.count)](
            packed(dt), A, dt_bias, *logs, left, decays, chunks.starts,
            *dt_limit, dt.stride(0), tokens, H,
            LENGTH=length, HEADS=_DISCRETISED, num_warps=4,
        )  # fmt: skip
    columns = min(tiles.columns, width)
    _pass_states[(triton.cdiv(N, columns), H, chunks.read_slots.shape[0])](
        packed(x), packed(B), left, decays, entries, packed(ssm_pool), chunks.starts,
        chunks.row_chunks, chunks.slots, chunks.read_slots, chunks.write_slots, chunks.has_initial,
        *strides, ssm_pool.stride(0), tokens, H, H // G,
        **sizes, SIZE=chunks.size, COLUMNS=columns, num_warps=_WARPS, num_stages=tiles.stages[0],
    )  # fmt: skip
    if tokens:
        rows = min(tiles.rows, length)
        heads = math.gcd(H // G, _HEADS)
        _outputs[(chunks.count * (length // rows), H // heads)](
            x, B, packed(C), D, *logs, entries, y, chunks.starts,
            *strides, C.stride(0), tokens, H, H // G,
            **sizes, BLOCK_N=width, ROWS=rows, KEYS=min(_KEYS, length), HEADS=heads,
            num_warps=_WARPS, num_stages=tiles.stages[1],
        )  # fmt: skip
    return y


@kernel
def _discretise(
    dt,
    A,
    dt_bias,
    log_decay,
    rests,
    weights,
    weight_rests,
    left,
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
    """Compute for some heads of one chunk, as exponents of two: the decay until each token, and
    the step by it, in halves [H, T]. And what is left of each token at the chunk's end [H, T], and
    the whole chunk's decay."""
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
    sums = tl.cumsum((size * (rate * LOG2_E)[:, None]).to(tl.float64), axis=1)
    last = tl.min(sums, axis=1)  # they only fall
    place = head.to(tl.int64)[:, None] * tokens + token[None, :]
    log, rest = in_halves(sums)
    tl.store(log_decay + place, log, mask=inside)
    tl.store(rests + place, rest, mask=inside)
    least = tl.maximum(size, 1e-37).to(tl.float64)  # a step of nothing has no logarithm
    weight, rest = in_halves(tl.log2(least) - sums)
    tl.store(weights + place, weight, mask=inside)
    tl.store(weight_rests + place, rest, mask=inside)
    remains = tl.exp2((last[:, None] - sums).to(tl.float32)) * size
    tl.store(left + place, remains, mask=inside)
    tl.store(decays + chunk * H + head, tl.exp2(last.to(tl.float32)), mask=in_h)


@kernel
def _pass_states(
    x,
    B,
    left,
    decays,
    entries,
    pool,
    starts,
    row_chunks,
    slots,
    read_slots,
    write_slots,
    has_initial,
    x_stride,
    B_stride,
    slot_stride,
    tokens,
    H,
    per_group,
    P: tl.constexpr,
    N: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK_P: tl.constexpr,
    COLUMNS: tl.constexpr,
    LENGTH: tl.constexpr,
):
    """Take some columns of one head's state [N, P] through one row: what enters each chunk is kept;
    snapshots and the final state go to the pool.

    After a row's first chunk all are SIZE apart: an address that came from a load in the same turn
    would keep Triton from loading tokens ahead.
    """
    n = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    head = tl.program_id(1).to(tl.int64)
    row = tl.program_id(2)
    p = tl.arange(0, BLOCK_P)
    in_p, in_n = p < P, n < N
    own = in_n[:, None] & in_p[None, :]
    part = head * (P * N) + p[None, :] * N + n[:, None]
    near = tl.arange(0, LENGTH)
    x_place = near[:, None] * x_stride + p[None, :]
    B_place = near[:, None] * B_stride + n[None, :]
    entry_place = n[:, None] * P + p[None, :]
    x += head * P
    B += (head // per_group) * N
    left += head * tokens
    state = tl.zeros((COLUMNS, BLOCK_P), tl.float32)
    if tl.load(has_initial + row) != 0:
        source = pool + tl.load(read_slots + row) * slot_stride
        state = tl.load(source + part, mask=own, other=0.0).to(tl.float32)
    tl.debug_barrier()  # threads store to the pool where others have loaded
    first, last = tl.load(row_chunks + row), tl.load(row_chunks + row + 1)
    begin, end = tl.load(starts + first), tl.load(starts + last)
    edge = tl.load(starts + tl.minimum(first + 1, last))
    for chunk in range(first, last):
        start = tl.where(chunk > first, edge + (chunk - first - 1) * SIZE, begin)
        stop = tl.minimum(edge + (chunk - first) * SIZE, end)
        entry = narrow(state, entries.dtype.element_ty)
        tl.store(entries + (chunk * H + head) * (N * P) + entry_place, entry, mask=own)
        inside = near < stop - start
        weight = tl.load(left + start + near, mask=inside, other=0.0)
        mask = inside[:, None] & in_p[None, :]
        values = tl.load(x + start * x_stride + x_place, mask=mask, other=0.0)
        mask = inside[:, None] & in_n[None, :]
        b = tl.load(B + start * B_stride + B_place, mask=mask, other=0.0)
        weighted = narrow(values.to(tl.float32) * weight[:, None], values.dtype)
        state = state * tl.load(decays + chunk * H + head) + dot(tl.trans(b), weighted)
        slot = tl.load(slots + chunk)
        if slot > 0:
            rounded = narrow(state, pool.dtype.element_ty)
            tl.store(pool + slot * slot_stride + part, rounded, mask=own)
    rounded = narrow(state, pool.dtype.element_ty)
    tl.store(pool + tl.load(write_slots + row) * slot_stride + part, rounded, mask=own)


@kernel
def _outputs(
    x,
    B,
    C,
    D,
    log_decay,
    rests,
    weights,
    weight_rests,
    entries,
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
    LENGTH: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    HEADS: tl.constexpr,
):
    """Compute the outputs [ROWS, P] of some tokens of one chunk, of some heads of one group."""
    TILES: tl.constexpr = LENGTH // ROWS
    chunk = (tl.program_id(0) // TILES).to(tl.int64)
    start, end = tl.load(starts + chunk), tl.load(starts + chunk + 1)
    begin = (tl.program_id(0) % TILES) * ROWS
    length = (end - start).to(tl.int32)
    if begin < length:
        token = begin + tl.arange(0, ROWS)  # of the chunk
        inside = token < length
        p, n = tl.arange(0, BLOCK_P), tl.arange(0, BLOCK_N)
        in_p, in_n = p < P, n < N
        first = tl.program_id(1).to(tl.int64) * HEADS
        group = first // per_group
        x += start * x_stride
        y += start * H * P
        B += start * B_stride + group * N
        C += start * C_stride + group * N
        c_place = token[:, None] * C_stride + n[None, :]
        c = tl.load(C + c_place, mask=inside[:, None] & in_n[None, :], other=0.0)
        pairs = ()
        for part in tl.static_range(LENGTH // KEYS):
            source = part * KEYS + tl.arange(0, KEYS)
            in_b = (source < length)[None, :] & in_n[:, None]
            b = tl.load(B + source[None, :] * B_stride + n[:, None], mask=in_b, other=0.0)
            products = tl.where(token[:, None] >= source[None, :], dot(c, b), 0.0)
            pairs += (products,)  # type: ignore[assignment]  # a tuple of Triton's
        for head in range(first, first + HEADS):
            own = entries + (chunk * H + head) * (N * P) + n[:, None] * P + p[None, :]
            entry = tl.load(own, mask=in_n[:, None] & in_p[None, :], other=0.0)
            at = head * tokens + start
            log = tl.load(log_decay + at + token, mask=inside, other=0.0)[:, None]
            rest = tl.load(rests + at + token, mask=inside, other=0.0)[:, None]
            out = dot(c, entry) * tl.exp2(log)
            for part in tl.static_range(LENGTH // KEYS):
                source = part * KEYS + tl.arange(0, KEYS)
                in_s = source < length
                own = x + head * P + (source[:, None] * x_stride + p[None, :])
                values = tl.load(own, mask=in_s[:, None] & in_p[None, :], other=0.0)
                weight = tl.load(weights + at + source, mask=in_s, other=0.0)[None, :]
                weight_rest = tl.load(weight_rests + at + source, mask=in_s, other=0.0)[None, :]
                # Pairs of a token and a later one are 0, but must not meet infinity.
                decay = tl.exp2(tl.minimum((log + weight) + (rest + weight_rest), 100.0))
                out += dot(narrow(pairs[part] * decay, values.dtype), values)
            stored = inside[:, None] & in_p[None, :]
            own = x + head * P + (token[:, None] * x_stride + p[None, :])
            skip = tl.load(own, mask=stored, other=0.0).to(tl.float32)
            out = narrow(out + skip * tl.load(D + head), y.dtype.element_ty)
            tl.store(y + head * P + (token[:, None] * (H * P) + p[None, :]), out, mask=stored)
