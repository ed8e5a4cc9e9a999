"""Causal attention of prompts over pages on a GPU; see baton.kernels.attention."""

from collections.abc import Sequence
from itertools import pairwise

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.triton.arithmetic import dot, narrow
from baton.kernels.triton.kernel import kernel
from baton.kernels.triton.paging import page_entries, page_places
from baton.kernels.triton.shapes import SMALLEST_DOT, block, packed

LOG2_E = tl.constexpr(1.4426950408889634)
_QUERIES = 128  # of one program; half as many in float32
_KEYS = 64  # of one product; half as many in float32


def paged_attn_prefill(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    block_tables: Tensor,
    table_rows: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_q_host: Sequence[int],
    kv_lens: Tensor,
    kv_lens_host: Sequence[int],
    scale: float,
) -> Tensor:
    """Implement `Kernels.paged_attn_prefill`; q may be strided over tokens. Of the host
    lengths only the new tokens are read."""
    tokens, heads, width = q.shape
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    if not tokens:
        return out
    page_size, kv_heads = k_pool.shape[1:3]
    starts = cu_seqlens_q_host
    longest = max(end - start for start, end in pairwise(starts))
    narrow = 1 if q.dtype != torch.float32 else 4
    if width > 128:
        narrow = 2 * narrow
    queries = min(_QUERIES // narrow, block(longest, SMALLEST_DOT))
    _attend[(triton.cdiv(longest, queries), heads, len(starts) - 1)](
        packed(q), packed(k_pool), packed(v_pool), block_tables, table_rows, cu_seqlens_q,
        kv_lens, out,
        scale, q.stride(0), k_pool.stride(0), v_pool.stride(0),
        block_tables.stride(0), heads, heads // kv_heads, PAGE_SIZE=page_size,
        KV_HEADS=kv_heads, WIDTH=width, BLOCK_D=block(width, SMALLEST_DOT), QUERIES=queries,
        KEYS=_KEYS if q.dtype != torch.float32 else _KEYS // 2,
        num_warps=8 if queries > 32 else 4, num_stages=3,
    )  # fmt: skip
    return out


@kernel
def _attend(
    q,
    k_pool,
    v_pool,
    block_tables,
    table_rows,
    cu_seqlens_q,
    kv_lens,
    out,
    scale,
    q_stride,
    k_page,
    v_page,
    table_stride,
    heads,
    per_kv_head,
    PAGE_SIZE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Attend from some new tokens of one row, for one query head. The last tokens, which see most,
    go first.

    Positions and pages: as in attention_decode.
    """
    head, row = tl.program_id(1), tl.program_id(2)
    first_block = (tl.num_programs(0) - 1 - tl.program_id(0)) * QUERIES
    start, end = tl.load(cu_seqlens_q + row), tl.load(cu_seqlens_q + row + 1)
    if start + first_block < end:
        within = first_block + tl.arange(0, QUERIES)
        token = start + within
        inside = token < end
        kv_len = tl.load(kv_lens + row).to(tl.int32)
        prefix = kv_len - (end - start).to(tl.int32)
        own = prefix + within  # absolute positions
        d = tl.arange(0, BLOCK_D)
        in_d = d < WIDTH
        queries = tl.load(
            q + token[:, None] * q_stride + head * WIDTH + d[None, :],
            mask=inside[:, None] & in_d[None, :],
            other=0.0,
        )
        kv_head = head // per_kv_head
        table = block_tables + tl.load(table_rows + row) * table_stride
        best = tl.full((QUERIES,), -1e30, tl.float32)
        total = tl.zeros((QUERIES,), tl.float32)
        mean = tl.zeros((QUERIES, BLOCK_D), tl.float32)
        seen_to = tl.minimum(prefix + first_block + QUERIES, kv_len)
        next_page = page_entries(table, 0, kv_len, PAGE_SIZE, KEYS)
        for first in range(0, seen_to, KEYS):
            position, held, place = page_places(first, kv_len, KV_HEADS * WIDTH, PAGE_SIZE, KEYS)
            page = next_page.to(tl.int64)
            next_page = page_entries(table, first + KEYS, kv_len, PAGE_SIZE, KEYS)
            place += kv_head * WIDTH
            keys = tl.load(
                k_pool + (page * k_page + place)[None, :] + d[:, None],
                mask=held[None, :] & in_d[:, None],
                other=0.0,
            ).to(queries.dtype)
            scores = dot(queries, keys) * scale
            visible = (position[None, :] <= own[:, None]) & held[None, :]
            scores = tl.where(visible, scores * LOG2_E, -1e30)
            better = tl.maximum(best, tl.max(scores, axis=1))
            weights = tl.where(visible, tl.exp2(scores - better[:, None]), 0.0)
            faded = tl.exp2(best - better)
            values = tl.load(
                v_pool + (page * v_page + place)[:, None] + d[None, :],
                mask=held[:, None] & in_d[None, :],
                other=0.0,
            ).to(queries.dtype)
            total = total * faded + tl.sum(weights, axis=1)
            mean = mean * faded[:, None] + dot(narrow(weights, queries.dtype), values)
            best = better
        mean = mean / tl.where(inside, total, 1.0)[:, None]
        target = out + (token[:, None] * heads + head) * WIDTH + d[None, :]
        mean = narrow(mean, out.dtype.element_ty)
        tl.store(target, mean, mask=inside[:, None] & in_d[None, :])
