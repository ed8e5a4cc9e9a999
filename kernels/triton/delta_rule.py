"""The gated delta rule over prompts on a GPU; see baton.kernels.gated_delta.

Five launches: the decayed products of queries and keys with keys; the inverses of the triangular
systems, one a chunk and head; what they make of the values and keys; the states passed from chunk
to chunk, with the corrections that they make; the outputs. Before them, where every key channel has
its own decay: cumulative logarithms of the decays.
Products of bfloat16 inputs are taken in bfloat16 and summed in float32; states, decays and inverses
are float32.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.gated_delta import CHUNK
from baton.kernels.triton.arithmetic import dot, narrow
from baton.kernels.triton.delta_inverse import SOLVED, invert
from baton.kernels.triton.delta_scores import accumulate, scores_of_channels, scores_of_heads
from baton.kernels.triton.kernel import kernel
from baton.kernels.triton.prompt_chunks import PromptChunks
from baton.kernels.triton.shapes import SMALLEST_DOT, block, packed

_CHANNELS = 32  # whose decays one program sums


class _ChannelDecays(NamedTuple):
    """Decays of key channels.

    logs, rests: [T, Hv, K] float32, from the chunk's start; the logarithms are their sums. No rests
                 where inputs have fewer digits than float32
    """

    logs: Tensor
    rests: Tensor | None


@dataclass(frozen=True)
class _Terms:
    """The tensors that one launch leaves for the next. T tokens, Hv heads; D is K where every key
    channel has its own decay, or 1.

    by_channel:   only with D = K
    rates:        [T, Hv] float32
    q_scores:     [chunks, Hv, CHUNK, CHUNK], of queries with keys
    k_scores:     [chunks, Hv, CHUNK, CHUNK] float32, of keys with keys
    entering, leaving, reading: of keys from the chunk's start and to its end, of queries from its
                  start. With D = K the rows [T, Hv, K], decayed; with D = 1 their scales [T, Hv]
                  float32. Lengths are taken in
    ends:         [chunks, Hv, D] float32, the decays of whole chunks
    inverses:     [chunks, Hv, CHUNK, CHUNK], with the rates of their columns
    values:       [T, Hv, V], the corrections, had the chunk begun from nothing; then as they are
    keys:         [T, Hv, K], what they lose for each unit of the entering state; with D = K in the
                  place of `entering`
    entries:      [chunks, Hv, K, V], the states that enter the chunks
    """

    by_channel: _ChannelDecays | None
    rates: Tensor
    q_scores: Tensor
    k_scores: Tensor
    entering: Tensor
    leaving: Tensor
    reading: Tensor
    ends: Tensor
    inverses: Tensor
    values: Tensor
    keys: Tensor
    entries: Tensor


def _terms_of(v: Tensor, K: int, chunks: int, channels: bool) -> _Terms:
    """Return uninitialised terms for values [T, Hv, V]."""
    tokens, heads, V = v.shape

    def floats(*shape: int) -> Tensor:
        return v.new_empty(shape, dtype=torch.float32)

    def decayed() -> Tensor:
        return v.new_empty((tokens, heads, K)) if channels else floats(tokens, heads)

    by_channel = None
    if channels:
        by_channel = _ChannelDecays(
            logs=floats(tokens, heads, K),
            rests=floats(tokens, heads, K) if v.dtype == torch.float32 else None,
        )
    entering = decayed()
    squares = (chunks, heads, CHUNK, CHUNK)
    return _Terms(
        by_channel=by_channel,
        rates=floats(tokens, heads),
        q_scores=v.new_empty(squares),
        k_scores=floats(*squares),
        entering=entering,
        leaving=decayed(),
        reading=decayed(),
        ends=floats(chunks, heads, K if channels else 1),
        inverses=v.new_empty(squares),
        values=v.new_empty((tokens, heads, V)),
        keys=entering if channels else v.new_empty((tokens, heads, K)),
        entries=v.new_empty((chunks, heads, K, V)),
    )


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
    terms = _terms_of(v, K, chunks.count, channels)
    BLOCK_K, BLOCK_V = block(K, SMALLEST_DOT), block(V, SMALLEST_DOT)
    per_key_head = heads // key_heads
    widths = {"K": K, "V": V, "BLOCK_K": BLOCK_K, "CHUNK": CHUNK, "CHANNELS": channels}
    grid = (heads, chunks.count)
    q, k, v = packed(q), packed(k), packed(v)
    if tokens:
        decays = (packed(g), packed(beta), *(decay or (None, None)))
        scores = (
            terms.q_scores, terms.k_scores, terms.entering, terms.leaving, terms.reading,
            terms.ends, chunks.starts, q.stride(0), k.stride(0),
        )  # fmt: skip
        sizes = (heads, per_key_head, K, K**-0.5)
        blocks = {"BLOCK_K": BLOCK_K, "CHUNK": CHUNK}
        if terms.by_channel is None:
            scores_of_heads[grid](
                q, k, *decays, terms.rates, *scores, g.stride(0), beta.stride(0), *sizes, **blocks,
                num_warps=4,
            )  # fmt: skip
        else:
            part = min(_CHANNELS, BLOCK_K)
            accumulate[(BLOCK_K // part, *grid)](
                *decays, *terms.by_channel, terms.rates, chunks.starts, g.stride(0),
                beta.stride(0), heads, K, CHUNK=CHUNK, BLOCK=part, num_warps=2,
            )  # fmt: skip
            scores_of_channels[grid](
                q, k, *terms.by_channel, *scores, *sizes, **blocks, num_warps=8, num_stages=1
            )
        invert[grid](
            terms.k_scores, terms.rates, terms.inverses, chunks.starts, heads,
            CHUNK=CHUNK, num_warps=1,
        )  # fmt: skip
        _correct[grid](
            k, v, terms.entering, terms.inverses, terms.values, terms.keys, chunks.starts,
            k.stride(0), v.stride(0), heads, per_key_head,
            BLOCK_V=BLOCK_V, **widths, num_warps=4, num_stages=1,
        )  # fmt: skip
    columns = min(32, BLOCK_V)
    # Never one stage: with Triton 3.6 it ended in an illegal memory access on an H200.
    _pass_states[(triton.cdiv(V, columns), heads, chunks.read_slots.shape[0])](
        k, terms.leaving, terms.values, terms.keys, terms.ends, terms.entries, packed(pool),
        chunks.starts, chunks.row_chunks, chunks.slots, chunks.read_slots, chunks.write_slots,
        chunks.has_initial, k.stride(0), pool.stride(0), heads, per_key_head,
        BLOCK_V=columns, **widths, num_warps=4, num_stages=3 if v.itemsize == 2 else 2,
    )  # fmt: skip
    if tokens:
        columns = min(128, BLOCK_V)
        _outputs[(triton.cdiv(V, columns), *grid)](
            q, terms.reading, terms.values, terms.entries, terms.q_scores, out, chunks.starts,
            q.stride(0), heads, per_key_head,
            BLOCK_V=columns, **widths, num_warps=4, num_stages=1,
        )  # fmt: skip
    return out


@kernel
def _correct(
    k,
    v,
    entering,
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
    if CHANNELS:
        key = tl.load(entering + place * K + c[None, :], mask=in_keys, other=0.0)
    else:
        entered = tl.load(entering + token * heads + head, mask=inside, other=0.0)
        at = token[:, None] * k_stride + (head // per_key_head) * K + c[None, :]
        key = tl.load(k + at, mask=in_keys, other=0.0).to(tl.float32)
        key = narrow(key * entered[:, None], dtype)
    tl.store(keys + place * K + c[None, :], narrow(dot(inverse, key), dtype), mask=in_keys)


@kernel
def _pass_states(
    k,
    leaving,
    values,
    keys,
    ends,
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
    j, c = tl.arange(0, CHUNK), tl.arange(0, BLOCK_K)
    e = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    in_k, in_v = c < K, e < V
    whole = in_k[:, None] & in_v[None, :]
    part = (head * K + c)[:, None] * V + e[None, :]
    state = tl.zeros((BLOCK_K, BLOCK_V), tl.float32)
    if tl.load(has_initial + row) != 0:
        source = pool + tl.load(read_slots + row) * slot_stride
        state = tl.load(source + part, mask=whole, other=0.0).to(tl.float32)
    first, past = tl.load(row_chunks + row), tl.load(row_chunks + row + 1)
    # Chunks between a row's first and its last are whole: no start is loaded in the loop.
    begin, row_end = tl.load(starts + first), tl.load(starts + past)
    second = tl.load(starts + first + 1, mask=first < past, other=0)
    key_place = j[:, None] * (heads * K) + c[None, :]
    value_place = j[:, None] * (heads * V) + e[None, :]
    k += (head // per_key_head) * K
    dtype = values.dtype.element_ty
    # A chunk's decay and slot are loaded one chunk ahead.
    if CHANNELS:
        ends += head * K + c[:, None]
        width, kept_in = K, in_k[:, None]
    else:
        ends += head
        width, kept_in = 1, True
    kept = tl.load(ends + first * heads * width, mask=kept_in & (first < past), other=0.0)
    slot = tl.load(slots + first, mask=first < past, other=0)
    for chunk in range(first, past):
        start = tl.where(chunk == first, begin, second + (chunk - first - 1) * CHUNK)
        end = tl.where(chunk == first, second, tl.minimum(start + CHUNK, row_end))
        inside = j < end - start
        in_keys, in_values = inside[:, None] & in_k[None, :], inside[:, None] & in_v[None, :]
        token = start * heads + head
        lost = tl.load(keys + token * K + key_place, mask=in_keys, other=0.0)
        built = tl.load(values + token * V + value_place, mask=in_values, other=0.0)
        if CHANNELS:
            key = tl.load(leaving + token * K + key_place, mask=in_keys, other=0.0)
        else:
            at = start * k_stride + j[:, None] * k_stride + c[None, :]
            key = tl.load(k + at, mask=in_keys, other=0.0)
            left = tl.load(leaving + token + j * heads, mask=inside, other=0.0)
        next_chunk = tl.minimum(chunk + 1, past - 1)
        next_kept = tl.load(ends + next_chunk * heads * width, mask=kept_in)
        next_slot = tl.load(slots + next_chunk)
        entry = narrow(state, dtype)
        tl.store(entries + chunk * heads * K * V + part, entry, mask=whole)
        made = built.to(tl.float32) - dot(lost, entry)
        tl.store(values + token * V + value_place, narrow(made, dtype), mask=in_values)
        if not CHANNELS:
            made *= left[:, None]
        state = state * kept + dot(tl.trans(key), narrow(made, dtype))
        if slot > 0:
            rounded = narrow(state, pool.dtype.element_ty)
            tl.store(pool + slot * slot_stride + part, rounded, mask=whole)
        kept, slot = next_kept, next_slot
    rounded = narrow(state, pool.dtype.element_ty)
    tl.store(pool + tl.load(write_slots + row) * slot_stride + part, rounded, mask=whole)


@kernel
def _outputs(
    q,
    reading,
    values,
    entries,
    scores,
    out,
    starts,
    q_stride,
    heads,
    per_key_head,
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
    in_keys, in_values = inside[:, None] & in_k[None, :], inside[:, None] & in_v[None, :]
    at = entries + ((chunk * heads + head) * K + c)[:, None] * V + e[None, :]
    entry = tl.load(at, mask=in_k[:, None] & in_v[None, :], other=0.0)
    if CHANNELS:
        query = tl.load(reading + place * K + c[None, :], mask=in_keys, other=0.0)
        read = dot(query, entry)
    else:
        at = token[:, None] * q_stride + (head // per_key_head) * K + c[None, :]
        query = tl.load(q + at, mask=in_keys, other=0.0)
        decays = tl.load(reading + token * heads + head, mask=inside, other=0.0)
        read = dot(query, entry) * decays[:, None]
    made = tl.load(values + place * V + e[None, :], mask=in_values, other=0.0)
    at = scores + (chunk * heads + head) * CHUNK * CHUNK + j[:, None] * CHUNK + j[None, :]
    seen = (j[:, None] >= j[None, :]) & inside[:, None]
    read += dot(tl.load(at, mask=seen, other=0.0), made)
    tl.store(out + place * V + e[None, :], narrow(read, made.dtype), mask=in_values)
