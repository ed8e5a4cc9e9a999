"""Attention of one new token a row on a GPU, its context in parts; see baton.kernels.attention.

How a row's context is parted depends on its own length alone: a row has the same result in every
batch. Lengths are read on the device, and the launch is the same for all of them, so that it can be
replayed from a graph.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.attention import LINKS
from baton.kernels.scratch import LEAST_PART, most_parts, parts_of
from baton.kernels.triton.arithmetic import dot, narrow
from baton.kernels.triton.attention_prefill import LOG2_E
from baton.kernels.triton.branches import nodes_of
from baton.kernels.triton.kernel import kernel
from baton.kernels.triton.paging import branch_places, page_entries, page_places
from baton.kernels.triton.shapes import SMALLEST_DOT, block, packed, processors

_KEYS = 64  # of one product; half as many in float32, and where heads are wider than 128
MERGED = 16  # parts that are read together


def paged_attn_decode(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    block_tables: Tensor,
    table_rows: Tensor,
    kv_lens: Tensor,
    kv_lens_host: Sequence[int],
    scale: float,
    *,
    first_key: int = 0,
    nodes: Tensor | None = None,
) -> Tensor:
    """Implement `Kernels.paged_attn_decode`, without a look at the host's lengths."""
    rows, heads, width = q.shape
    page_size, kv_heads = k_pool.shape[1:3]
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    most = most_parts(kv_heads, processors(q.device))
    parts = parts_of(block_tables.shape[1] * page_size, most)
    per_kv_head = heads // kv_heads
    means = q.new_empty((rows, heads, parts, width), dtype=torch.float32)
    sums = q.new_empty((rows, heads, parts, 2), dtype=torch.float32)
    if not rows:
        return out
    # Two tiles of keys and values are in shared memory: three programs fit on a multiprocessor.
    keys = _KEYS if q.dtype != torch.float32 and width <= 128 else _KEYS // 2
    widths = {"WIDTH": width, "BLOCK_D": block(width, SMALLEST_DOT)}
    _attend_part[(parts, kv_heads, rows)](
        packed(q), packed(k_pool), packed(v_pool), block_tables, table_rows, kv_lens, nodes, means,
        sums, scale, q.stride(0), k_pool.stride(0), v_pool.stride(0),
        block_tables.stride(0), heads, parts, PAGE_SIZE=page_size,
        KV_HEADS=kv_heads, PER_KV_HEAD=per_kv_head, HEADS=block(per_kv_head, SMALLEST_DOT),
        KEYS=keys, LEAST=LEAST_PART, MOST=most, FIRST=first_key, LINKS=LINKS, **widths,
        num_warps=4, num_stages=3,
    )  # fmt: skip
    merge_parts[(heads, rows)](
        means, sums, kv_lens, out, heads, parts, LEAST=LEAST_PART, MOST=most, QUERIES=1,
        MERGED=MERGED, **widths, num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def part_length(kv_len, LEAST: tl.constexpr, MOST: tl.constexpr):
    """Return the tokens of a part of a row of kv_len tokens, a multiple of 64."""
    return tl.maximum(LEAST, tl.cdiv(tl.cdiv(kv_len, MOST), 64) * 64)


@triton.jit
def _attend_tile(
    queries, k_pool, v_pool, k_page, v_page, place, held, d, in_d, scale, best, total, mean
):
    """Return the softmax over the tokens so far and those of one tile, where `held`.

    k_page, v_page: where the pages of the tile begin, one number or [KEYS]. place: [KEYS], of each
    token in its page
    """
    keys = tl.load(
        k_pool + (k_page + place)[None, :] + d[:, None],
        mask=held[None, :] & in_d[:, None],
        other=0.0,
    ).to(queries.dtype)
    values = tl.load(
        v_pool + (v_page + place)[:, None] + d[None, :],
        mask=held[:, None] & in_d[None, :],
        other=0.0,
    ).to(queries.dtype)
    scores = dot(queries, keys) * scale
    scores = tl.where(held[None, :], scores * LOG2_E, -1e30)
    better = tl.maximum(best, tl.max(scores, axis=1))
    weights = tl.where(held[None, :], tl.exp2(scores - better[:, None]), 0.0)
    faded = tl.exp2(best - better)
    total = total * faded + tl.sum(weights, axis=1)
    mean = mean * faded[:, None] + dot(narrow(weights, queries.dtype), values)
    return better, total, mean


@kernel
def _attend_part(
    q,
    k_pool,
    v_pool,
    block_tables,
    table_rows,
    kv_lens,
    nodes,
    means,
    sums,
    scale,
    q_stride,
    k_page,
    v_page,
    table_stride,
    heads,
    parts,
    PAGE_SIZE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    PER_KV_HEAD: tl.constexpr,
    HEADS: tl.constexpr,
    KEYS: tl.constexpr,
    LEAST: tl.constexpr,
    MOST: tl.constexpr,
    FIRST: tl.constexpr,
    LINKS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Attend to one part of one row's context, for the query heads of one KV head.

    Positions are int32 and the page's size is known when this is compiled: a 64-bit division is a
    call of some hundred instructions, for every position.
    """
    part, kv_head = tl.program_id(0), tl.program_id(1)
    row = tl.program_id(2).to(tl.int64)
    kv_len = tl.load(kv_lens + row).to(tl.int32)
    length = part_length(kv_len, LEAST, MOST)
    begin = part * length
    end = tl.minimum(begin + length, kv_len)
    if begin < end:
        within = tl.arange(0, HEADS)
        head = kv_head * PER_KV_HEAD + within
        in_h = within < PER_KV_HEAD
        d = tl.arange(0, BLOCK_D)
        in_d = d < WIDTH
        queries = tl.load(
            q + row * q_stride + head[:, None] * WIDTH + d[None, :],
            mask=in_h[:, None] & in_d[None, :],
            other=0.0,
        )
        table = block_tables + tl.load(table_rows + row) * table_stride
        best = tl.full((HEADS,), -1e30, tl.float32)
        total = tl.zeros((HEADS,), tl.float32)
        mean = tl.zeros((HEADS, BLOCK_D), tl.float32)
        # Of a tree, tiles before the row's newest token lie in order, and the others do not.
        ordered, path, branch = end, 0, 0
        if nodes is not None:
            path = tl.load(nodes + row)
            branch = kv_len - nodes_of(path, LINKS)
            ordered = tl.minimum(end, tl.maximum(begin, branch // KEYS * KEYS))
        next_page = page_entries(table, begin, end, PAGE_SIZE, KEYS)
        for first in range(begin, ordered, KEYS):
            position, held, place = page_places(first, end, KV_HEADS * WIDTH, PAGE_SIZE, KEYS)
            if FIRST > 0:
                held = held & (position >= FIRST)
            page = next_page.to(tl.int64)
            next_page = page_entries(table, first + KEYS, end, PAGE_SIZE, KEYS)
            best, total, mean = _attend_tile(
                queries, k_pool, v_pool, page * k_page, page * v_page, place + kv_head * WIDTH,
                held, d, in_d, scale, best, total, mean,
            )  # fmt: skip
        if nodes is not None:
            for first in range(ordered, end, KEYS):
                position, held, page, place = branch_places(
                    table, first, end, branch, path, KV_HEADS * WIDTH, PAGE_SIZE, KEYS, LINKS
                )
                if FIRST > 0:
                    held = held & (position >= FIRST)
                best, total, mean = _attend_tile(
                    queries, k_pool, v_pool, page * k_page, page * v_page,
                    place + kv_head * WIDTH, held, d, in_d, scale, best, total, mean,
                )  # fmt: skip
        place = (row * heads + head) * parts + part
        stored = in_h[:, None] & in_d[None, :]
        tl.store(means + place[:, None] * WIDTH + d[None, :], mean, mask=stored)
        tl.store(sums + place * 2, best, mask=in_h)
        tl.store(sums + place * 2 + 1, total, mask=in_h)


@kernel
def merge_parts(
    means,
    sums,
    kv_lens,
    out,
    heads,
    parts,
    LEAST: tl.constexpr,
    MOST: tl.constexpr,
    QUERIES: tl.constexpr,
    MERGED: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Merge the parts of one head of one row, weighted by their sums; zeros for a row without
    tokens. MERGED parts are read together: one after the other, each would wait for the last.

    means: [rows, heads, parts, WIDTH], not yet divided; sums: [rows, heads, parts, 2], the largest
    exponent (of two) and the sum of weights; out: [rows, heads, WIDTH]
    """
    head, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    kv_len = tl.load(kv_lens + row // QUERIES).to(tl.int32)
    used = tl.cdiv(kv_len, part_length(kv_len, LEAST, MOST))
    d = tl.arange(0, BLOCK_D)
    in_d = d < WIDTH
    best = tl.full((), -1e30, tl.float32)
    total = tl.zeros((), tl.float32)
    mean = tl.zeros((BLOCK_D,), tl.float32)
    for first in range(0, used, MERGED):
        part = first + tl.arange(0, MERGED)
        there = part < used
        place = (row * heads + head) * parts + part
        top = tl.load(sums + place * 2, mask=there, other=-1e30)
        weight = tl.load(sums + place * 2 + 1, mask=there, other=0.0)
        better = tl.maximum(best, tl.max(top, axis=0))
        faded, share = tl.exp2(best - better), tl.exp2(top - better)
        value = tl.load(
            means + place[:, None] * WIDTH + d[None, :],
            mask=there[:, None] & in_d[None, :],
            other=0.0,
        )
        total = total * faded + tl.sum(weight * share, axis=0)
        mean = mean * faded + tl.sum(value * share[:, None], axis=0)
        best = better
    mean = narrow(mean / tl.where(total > 0.0, total, 1.0), out.dtype.element_ty)
    tl.store(out + (row * heads + head) * WIDTH + d, mean, mask=in_d)
