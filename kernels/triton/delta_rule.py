"""The gated delta rule over prompts on a GPU; see baton.kernels.gated_delta.

Six launches: cumulative logarithms of the decays; the decayed products of queries and keys with
keys; the inverses of the triangular systems, one a chunk and head; what they make of the values and
keys; the states passed from chunk to chunk, with the corrections that they make; the outputs.
Products of bfloat16 inputs are taken in bfloat16 and summed in float32; states, decays and inverses
are float32.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.gated_delta import CHUNK
from baton.kernels.triton.arithmetic import (
    decay_between,
    dot,
    in_halves,
    narrow,
    sigmoid,
    softplus,
)
from baton.kernels.triton.delta_inverse import SOLVED, invert
from baton.kernels.triton.delta_update import unit
from baton.kernels.triton.kernel import kernel
from baton.kernels.triton.prompt_chunks import PromptChunks
from baton.kernels.triton.shapes import SMALLEST_DOT, block, packed

_CHANNELS = 32  # whose decays one program sums


@dataclass(frozen=True)
class _Terms:
    """The tensors that one launch leaves for the next. T tokens, Hv heads; all of what follows is
    written once.

    logs, rests: [T, Hv, K or 1] float32, from the chunk's start; the logarithms are their sums
    rates:       [T, Hv] float32
    values:      [T, Hv, V], the corrections, had the chunk begun from nothing; then as they are
    keys:        [T, Hv, K], what they lose for each unit of the entering state
    scores:      [2, chunks, Hv, CHUNK, CHUNK] float32, of queries and keys with keys
    inverses:    [chunks, Hv, CHUNK, CHUNK], with the rates of their columns
    entries:     [chunks, Hv, K, V], the states that enter the chunks
    """

    logs: Tensor
    rests: Tensor
    rates: Tensor
    values: Tensor
    keys: Tensor
    scores: Tensor
    inverses: Tensor
    entries: Tensor


def gated_delta_prompts(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    pool: Tensor,
    chunks: PromptChunks,
    decay: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Compute baton.kernels.gated_delta.gated_delta_prefill, with the batch's rows, chunks of CHUNK
    tokens and snapshots in `chunks`.

    decay: as in baton.kernels.triton.delta_update.gated_delta_update
    """
    tokens, heads, V = v.shape
    key_heads, K = k.shape[1:]
    out = torch.empty_like(v, memory_format=torch.contiguous_format)
    channels = g.numel() != beta.numel()
    width = K if channels else 1
    logs, rests = (v.new_empty((tokens, heads, width), dtype=torch.float32) for _ in range(2))
    terms = _Terms(
        logs=logs,
        rests=rests,
        rates=v.new_empty((tokens, heads), dtype=torch.float32),
        values=v.new_empty((tokens, heads, V)),
        keys=v.new_empty((tokens, heads, K)),
        scores=v.new_empty((2, chunks.count, heads, CHUNK, CHUNK), dtype=torch.float32),
        inverses=v.new_empty((chunks.count, heads, CHUNK, CHUNK)),
        entries=v.new_empty((chunks.count, heads, K, V)),
    )
    A, dt_bias = decay if decay is not None else (None, None)
    BLOCK_K, BLOCK_V = block(K, SMALLEST_DOT), block(V, SMALLEST_DOT)
    columns = min(32, BLOCK_V)
    per_key_head = heads // key_heads
    widths = {"K": K, "V": V, "BLOCK_K": BLOCK_K, "CHUNK": CHUNK}
    grid = (heads, chunks.count)
    q, k, v = packed(q), packed(k), packed(v)
    if tokens:
        part = min(_CHANNELS, BLOCK_K) if channels else 1
        _accumulate[(triton.cdiv(K, part) if channels else 1, *grid)](
            packed(g), packed(beta), A, dt_bias, logs, rests, terms.rates, chunks.starts,
            g.stride(0), beta.stride(0), heads, width,
            CHUNK=CHUNK, BLOCK=part, num_warps=4,
        )  # fmt: skip
        keys = (q, k, logs, rests, *terms.scores, chunks.starts, q.stride(0), k.stride(0), heads)
        rest = (per_key_head, K, K**-0.5)
        if channels:
            _channel_scores[(CHUNK // SOLVED.value, *grid)](
                *keys, *rest, BLOCK_K=BLOCK_K, CHUNK=CHUNK, num_warps=8
            )
        else:
            _scores[grid](*keys, *rest, BLOCK_K=BLOCK_K, CHUNK=CHUNK, num_warps=4)
        invert[grid](
            terms.scores[1], terms.rates, terms.inverses, chunks.starts, heads,
            CHUNK=CHUNK, num_warps=1,
        )  # fmt: skip
        _correct[grid](
            k, v, logs, terms.inverses, terms.values, terms.keys, chunks.starts,
            k.stride(0), v.stride(0), heads, per_key_head,
            BLOCK_V=BLOCK_V, CHANNELS=channels, **widths, num_warps=4, num_stages=1,
        )  # fmt: skip
    _pass_states[(triton.cdiv(V, columns), heads, chunks.read_slots.shape[0])](
        k, logs, rests, terms.values, terms.keys, terms.entries, packed(pool), chunks.starts,
        chunks.row_chunks, chunks.slots, chunks.read_slots, chunks.write_slots, chunks.has_initial,
        k.stride(0), pool.stride(0), heads, per_key_head,
        BLOCK_V=columns, CHANNELS=channels, **widths, num_warps=4, num_stages=2,
    )  # fmt: skip
    if tokens:
        columns = min(64, BLOCK_V)
        _outputs[(triton.cdiv(V, columns), *grid)](
            q, logs, terms.values, terms.entries, terms.scores[0], out, chunks.starts,
            q.stride(0), heads, per_key_head, K**-0.5,
            BLOCK_V=columns, CHANNELS=channels, **widths, num_warps=4, num_stages=1,
        )  # fmt: skip
    return out


@kernel
def _accumulate(
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
    rate = tl.load(beta + token * beta_stride + head, mask=inside, other=0).to(tl.float32)
    if A is not None:
        log += tl.load(dt_bias + head * width + c, mask=c < width, other=0)[None, :]
        log = tl.load(A + head) * softplus(log)
        rate = sigmoid(rate)
    # Summed in float64: a long sum of logarithms would lose the small ones.
    summed, rest = in_halves(tl.cumsum(tl.where(in_block, log, 0.0).to(tl.float64), axis=0))
    place = (token * heads + head)[:, None] * width + c[None, :]
    tl.store(logs + place, summed, mask=in_block)
    tl.store(rests + place, rest, mask=in_block)
    if tl.program_id(0) == 0:
        tl.store(rates + token * heads + head, rate, mask=inside)


@triton.jit
def _unit_rows(x, token, stride, head, inside, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """Load rows of [T, heads, K] at unit length: [tokens, BLOCK_K] float32, zeros outside."""
    c = tl.arange(0, BLOCK_K)
    mask = inside[:, None] & (c < K)[None, :]
    rows = tl.load(x + token[:, None] * stride + head * K + c[None, :], mask=mask, other=0.0)
    return unit(rows.to(tl.float32), 1)


@kernel
def _scores(
    q,
    k,
    logs,
    rests,
    q_scores,
    k_scores,
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
    """Compute one chunk's scores of one head that has one decay: products, then decays."""
    head = tl.program_id(0)
    chunk = tl.program_id(1).to(tl.int64)
    j = tl.arange(0, CHUNK)
    token = tl.load(starts + chunk) + j
    inside = token < tl.load(starts + chunk + 1)
    log = tl.load(logs + token * heads + head, mask=inside, other=0.0)
    rest = tl.load(rests + token * heads + head, mask=inside, other=0.0)
    decay = decay_between(log[:, None], rest[:, None], log[None, :], rest[None, :])
    dtype = k.dtype.element_ty
    key_head = head // per_key_head
    keys = narrow(_unit_rows(k, token, k_stride, key_head, inside, K, BLOCK_K), dtype)
    place = (chunk * heads + head) * CHUNK * CHUNK + j[:, None] * CHUNK + j[None, :]
    tl.store(k_scores + place, dot(keys, tl.trans(keys)) * decay, mask=inside[:, None])
    queries = _unit_rows(q, token, q_stride, key_head, inside, K, BLOCK_K) * scale
    products = dot(narrow(queries, dtype), tl.trans(keys)) * decay
    tl.store(q_scores + place, products, mask=inside[:, None])


@kernel
def _channel_scores(
    q,
    k,
    logs,
    rests,
    q_scores,
    k_scores,
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
    """SOLVED rows of one chunk's scores of one head, where every key channel has its own decay.

    With the keys before these rows, both sides are decayed to the first of them: neither factor can
    overflow. Among themselves they are taken pair by pair.
    """
    head = tl.program_id(1)
    chunk = tl.program_id(2).to(tl.int64)
    start, end = tl.load(starts + chunk), tl.load(starts + chunk + 1)
    begin = start + tl.program_id(0) * SOLVED
    if begin < end:
        r, c, j = tl.arange(0, SOLVED), tl.arange(0, BLOCK_K), tl.arange(0, CHUNK)
        in_k = c < K
        token, source = begin + r, start + j
        inside, before = token < end, source < begin
        key_head = head // per_key_head
        own_k = _unit_rows(k, token, k_stride, key_head, inside, K, BLOCK_K)
        own_q = _unit_rows(q, token, q_stride, key_head, inside, K, BLOCK_K) * scale
        all_k = _unit_rows(k, source, k_stride, key_head, before, K, BLOCK_K)
        at = (token * heads + head)[:, None] * K + c[None, :]
        own_logs = tl.load(logs + at, mask=inside[:, None] & in_k[None, :], other=0.0)
        own_rests = tl.load(rests + at, mask=inside[:, None] & in_k[None, :], other=0.0)
        at = (begin * heads + head) * K + c
        first = tl.load(logs + at, mask=in_k, other=0.0)[None, :]
        first_rest = tl.load(rests + at, mask=in_k, other=0.0)[None, :]
        at = (source * heads + head)[:, None] * K + c[None, :]
        all_logs = tl.load(logs + at, mask=before[:, None] & in_k[None, :], other=0.0)
        all_rests = tl.load(rests + at, mask=before[:, None] & in_k[None, :], other=0.0)
        since = decay_between(own_logs, own_rests, first, first_rest)
        until = all_k * decay_between(first, first_rest, all_logs, all_rests)
        until = tl.trans(tl.where(before[:, None], until, 0.0))
        own_queries, own_keys = dot(own_q * since, until), dot(own_k * since, until)
        for other in range(SOLVED):
            one = begin + other
            if one < end:
                key = tl.load(k + one * k_stride + key_head * K + c, mask=in_k, other=0.0)
                key = unit(key.to(tl.float32), 0)
                there = (one * heads + head) * K + c
                log = tl.load(logs + there, mask=in_k, other=0.0)[None, :]
                rest = tl.load(rests + there, mask=in_k, other=0.0)[None, :]
                decayed = key[None, :] * decay_between(own_logs, own_rests, log, rest)
                here = (source == one)[None, :]
                own_queries += tl.where(here, tl.sum(own_q * decayed, axis=1)[:, None], 0.0)
                own_keys += tl.where(here, tl.sum(own_k * decayed, axis=1)[:, None], 0.0)
        place = (chunk * heads + head) * CHUNK * CHUNK
        place += (token - start)[:, None] * CHUNK + j[None, :]
        tl.store(q_scores + place, own_queries, mask=inside[:, None])
        tl.store(k_scores + place, own_keys, mask=inside[:, None])


@kernel
def _correct(
    k,
    v,
    logs,
    inverses,
    values,
    keys,
    starts,
    k_stride,
    v_stride,
    heads,
    per_key_head,
    K: tl.constexpr,
    V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    CHUNK: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Compute the corrections of one chunk of one head for no entering state and for a unit of
    it."""
    head = tl.program_id(0)
    chunk = tl.program_id(1).to(tl.int64)
    j, e, c = tl.arange(0, CHUNK), tl.arange(0, BLOCK_V), tl.arange(0, BLOCK_K)
    token = tl.load(starts + chunk) + j
    inside = token < tl.load(starts + chunk + 1)
    in_keys, in_values = inside[:, None] & (c < K)[None, :], inside[:, None] & (e < V)[None, :]
    dtype = v.dtype.element_ty
    at = inverses + (chunk * heads + head) * CHUNK * CHUNK + j[:, None] * CHUNK + j[None, :]
    # What is above the blocks on the diagonal was not written.
    known = j[:, None] // SOLVED >= j[None, :] // SOLVED
    inverse = tl.load(at, mask=known, other=0.0)
    own = tl.load(v + token[:, None] * v_stride + head * V + e[None, :], mask=in_values, other=0.0)
    place = (token * heads + head)[:, None]
    tl.store(values + place * V + e[None, :], narrow(dot(inverse, own), dtype), mask=in_values)
    key = _unit_rows(k, token, k_stride, head // per_key_head, inside, K, BLOCK_K)
    if CHANNELS:
        key *= tl.exp(tl.load(logs + place * K + c[None, :], mask=in_keys, other=0.0))
    else:
        key *= tl.exp(tl.load(logs + token * heads + head, mask=inside, other=0.0))[:, None]
    lost = narrow(dot(inverse, narrow(key, dtype)), dtype)
    tl.store(keys + place * K + c[None, :], lost, mask=in_keys)


@kernel
def _pass_states(
    k,
    logs,
    rests,
    values,
    keys,
    entries,
    pool,
    starts,
    row_chunks,
    slots,
    read_slots,
    write_slots,
    has_initial,
    k_stride,
    slot_stride,
    heads,
    per_key_head,
    K: tl.constexpr,
    V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    CHUNK: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Pass some columns of one head's state through one row. `values` become the corrections that
    are made; snapshots and the final state go to the pool."""
    head = tl.program_id(1)
    row = tl.program_id(2)
    c, e = tl.arange(0, BLOCK_K), tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    in_k, in_v = c < K, e < V
    whole = in_k[:, None] & in_v[None, :]
    part = (head * K + c)[:, None] * V + e[None, :]
    state = tl.zeros((BLOCK_K, BLOCK_V), tl.float32)
    if tl.load(has_initial + row) != 0:
        source = pool + tl.load(read_slots + row) * slot_stride
        state = tl.load(source + part, mask=whole, other=0.0).to(tl.float32)
    for chunk in range(tl.load(row_chunks + row), tl.load(row_chunks + row + 1)):
        start, end = tl.load(starts + chunk), tl.load(starts + chunk + 1)
        token = start + tl.arange(0, CHUNK)
        inside = token < end
        entry = narrow(state, entries.dtype.element_ty)
        tl.store(entries + chunk * heads * K * V + part, entry, mask=whole)
        place = (token * heads + head)[:, None]
        in_keys, in_values = inside[:, None] & in_k[None, :], inside[:, None] & in_v[None, :]
        lost = tl.load(keys + place * K + c[None, :], mask=in_keys, other=0.0)
        built = tl.load(values + place * V + e[None, :], mask=in_values, other=0.0)
        made = built.to(tl.float32) - dot(lost, narrow(state, lost.dtype))
        tl.store(values + place * V + e[None, :], narrow(made, lost.dtype), mask=in_values)
        key = _unit_rows(k, token, k_stride, head // per_key_head, inside, K, BLOCK_K)
        if CHANNELS:
            log = tl.load(logs + place * K + c[None, :], mask=in_keys, other=0.0)
            rest = tl.load(rests + place * K + c[None, :], mask=in_keys, other=0.0)
            at = ((end - 1) * heads + head) * K + c
            last = tl.load(logs + at, mask=in_k, other=0.0)
            last_rest = tl.load(rests + at, mask=in_k, other=0.0)
            key *= decay_between(last[None, :], last_rest[None, :], log, rest)
            state *= tl.exp(last)[:, None]
        else:
            log = tl.load(logs + token * heads + head, mask=inside, other=0.0)
            rest = tl.load(rests + token * heads + head, mask=inside, other=0.0)
            last = tl.load(logs + (end - 1) * heads + head)
            last_rest = tl.load(rests + (end - 1) * heads + head)
            key *= decay_between(last, last_rest, log, rest)[:, None]
            state *= tl.exp(last)
        state += dot(tl.trans(narrow(key, lost.dtype)), narrow(made, lost.dtype))
        slot = tl.load(slots + chunk)
        if slot > 0:
            rounded = narrow(state, pool.dtype.element_ty)
            tl.store(pool + slot * slot_stride + part, rounded, mask=whole)
    rounded = narrow(state, pool.dtype.element_ty)
    tl.store(pool + tl.load(write_slots + row) * slot_stride + part, rounded, mask=whole)


@kernel
def _outputs(
    q,
    logs,
    values,
    entries,
    scores,
    out,
    starts,
    q_stride,
    heads,
    per_key_head,
    scale,
    K: tl.constexpr,
    V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    CHUNK: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Compute some channels of the outputs of one chunk of one head."""
    head = tl.program_id(1)
    chunk = tl.program_id(2).to(tl.int64)
    j, c = tl.arange(0, CHUNK), tl.arange(0, BLOCK_K)
    e = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    token = tl.load(starts + chunk) + j
    inside = token < tl.load(starts + chunk + 1)
    in_k, in_v = c < K, e < V
    place = (token * heads + head)[:, None]
    in_values = inside[:, None] & in_v[None, :]
    made = tl.load(values + place * V + e[None, :], mask=in_values, other=0.0)
    at = entries + ((chunk * heads + head) * K + c)[:, None] * V + e[None, :]
    entry = tl.load(at, mask=in_k[:, None] & in_v[None, :], other=0.0)
    query = _unit_rows(q, token, q_stride, head // per_key_head, inside, K, BLOCK_K) * scale
    if CHANNELS:
        at = logs + place * K + c[None, :]
        query *= tl.exp(tl.load(at, mask=inside[:, None] & in_k[None, :], other=0.0))
    else:
        query *= tl.exp(tl.load(logs + token * heads + head, mask=inside, other=0.0))[:, None]
    at = scores + (chunk * heads + head) * CHUNK * CHUNK + j[:, None] * CHUNK + j[None, :]
    seen = (j[:, None] >= j[None, :]) & inside[:, None]
    products = tl.load(at, mask=seen, other=0.0)
    read = dot(narrow(query, made.dtype), entry) + dot(narrow(products, made.dtype), made)
    tl.store(out + place * V + e[None, :], narrow(read, made.dtype), mask=in_values)
