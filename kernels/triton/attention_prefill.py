"""Causal attention of prompts over pages on a GPU; see baton.kernels.attention."""

from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Tiles:
    """The sizes of a program: queries of one head, and keys of one product."""

    queries: int
    keys: int
    warps: int
    stages: int


def _tiles(width: int, wide: bool) -> Tiles:
    """Return the tiles for heads of `width` channels, in float32 or in bfloat16."""
    if wide:
        return Tiles(16 if width > 128 else 32, 32, 4, 3)
    if width > 128:
        return Tiles(128, 64, 8, 2)
    return Tiles(64 if width > 64 else 128, 64, 4, 3)


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
    tiles = _tiles(width, q.dtype == torch.float32)
    queries = min(tiles.queries, block(longest, SMALLEST_DOT))
    _attend[(triton.cdiv(longest, queries), heads, len(starts) - 1)](
        packed(q), packed(k_pool), packed(v_pool), block_tables, table_rows, cu_seqlens_q,
        kv_lens, out,
        scale * LOG2_E.value, q.stride(0), k_pool.stride(0), v_pool.stride(0),
        block_tables.stride(0), heads, heads // kv_heads, PAGE_SIZE=page_size,
        KV_HEADS=kv_heads, WIDTH=width, BLOCK_D=block(width, SMALLEST_DOT), QUERIES=queries,
        KEYS=tiles.keys, num_warps=tiles.warps if queries > 32 else 4, num_stages=tiles.stages,
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
        inside = within < (end - start).to(tl.int32)
        kv_len = tl.load(kv_lens + row).to(tl.int32)
        prefix = kv_len - (end - start).to(tl.int32)
        own = prefix + within  # absolute positions
        d = tl.arange(0, BLOCK_D)
        in_d = d < WIDTH
        near = tl.arange(0, QUERIES)[:, None]
        q += (start + first_block) * q_stride + head * WIDTH
        queries = tl.load(
            q + (near * q_stride + d[None, :]),
            mask=inside[:, None] & in_d[None, :],
            other=0.0,
        )
        kv_head = head // per_kv_head
        table = block_tables + tl.load(table_rows + row) * table_stride
        best = tl.full((QUERIES,), -1e30, tl.float32)
        total = tl.zeros((QUERIES,), tl.float32)
        mean = tl.zeros((QUERIES, BLOCK_D), tl.float32)
        next_page = page_entries(table, 0, kv_len, PAGE_SIZE, KEYS)
        # All queries see all keys of the first tiles, which take no masks.
        clear = (prefix + first_block + 1) // KEYS * KEYS
        for first in range(0, clear, KEYS):
            page = next_page.to(tl.int64)
            next_page = page_entries(table, first + KEYS, kv_len, PAGE_SIZE, KEYS)
            best, total, mean = _tile(
                queries, best, total, mean, k_pool, v_pool, page * k_page, page * v_page,
                first, own, kv_len, kv_head, scale,
                PAGE_SIZE, KV_HEADS, WIDTH, BLOCK_D, KEYS, MASKED=False,
            )  # fmt: skip
        for first in range(clear, tl.minimum(prefix + first_block + QUERIES, kv_len), KEYS):
            page = next_page.to(tl.int64)
            next_page = page_entries(table, first + KEYS, kv_len, PAGE_SIZE, KEYS)
            best, total, mean = _tile(
                queries, best, total, mean, k_pool, v_pool, page * k_page, page * v_page,
                first, own, kv_len, kv_head, scale,
                PAGE_SIZE, KV_HEADS, WIDTH, BLOCK_D, KEYS, MASKED=True,
            )  # fmt: skip
        # Read again: registers are scarce between here and there.
        start, end = tl.load(cu_seqlens_q + row), tl.load(cu_seqlens_q + row + 1)
        inside = within < (end - start).to(tl.int32)
        mean = mean * (1.0 / tl.where(inside, total, 1.0))[:, None]
        out += (start + first_block) * (heads * WIDTH) + head * WIDTH
        target = out + (near * (heads * WIDTH) + d[None, :])
        mean = narrow(mean, out.dtype.element_ty)
        tl.store(target, mean, mask=inside[:, None] & in_d[None, :])


@triton.jit
def _tile(
    queries,
    best,
    total,
    mean,
    k_pool,
    v_pool,
    k_page,
    v_page,
    first,
    own,
    kv_len,
    kv_head,
    scale,
    PAGE_SIZE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr,
    KEYS: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Attend to one tile of keys: return best, total and mean with it."""
    d = tl.arange(0, BLOCK_D)
    position, held, place = page_places(first, kv_len, KV_HEADS * WIDTH, PAGE_SIZE, KEYS)
    in_k, in_v = (d < WIDTH)[:, None], (d < WIDTH)[None, :]
    if MASKED:
        in_k, in_v = in_k & held[None, :], in_v & held[:, None]
    if PAGE_SIZE % KEYS == 0:  # one page: all that differs from tile to tile is one number
        before = first % PAGE_SIZE * (KV_HEADS * WIDTH) + kv_head * WIDTH
        place = tl.arange(0, KEYS) * (KV_HEADS * WIDTH)
        k_at = k_pool + (k_page + before) + (place[None, :] + d[:, None])
        v_at = v_pool + (v_page + before) + (place[:, None] + d[None, :])
    else:
        place += kv_head * WIDTH
        k_at = k_pool + (k_page + place)[None, :] + d[:, None]
        v_at = v_pool + (v_page + place)[:, None] + d[None, :]
    keys = tl.load(k_at, mask=in_k, other=0.0)
    scores = dot(queries, keys.to(queries.dtype))
    if MASKED:
        scores = tl.where(position[None, :] <= own[:, None], scores, -1e30)
    weights, better, total, faded = softened(scores, best, total, scale)
    values = tl.load(v_at, mask=in_v, other=0.0).to(queries.dtype)
    return better, total, mean * faded[:, None] + dot(narrow(weights, queries.dtype), values)


@triton.jit
def softened(scores, best, total, scale):
    """Return the weights of a tile's scores; best and total with them; and by what the sums until
    now fade. scale: above 0, of exponents of two."""
    better = tl.maximum(best, tl.max(scores, axis=1) * scale)
    weights = tl.exp2(scores * scale - better[:, None])
    faded = tl.exp2(best - better)
    return weights, better, total * faded + tl.sum(weights, axis=1), faded
