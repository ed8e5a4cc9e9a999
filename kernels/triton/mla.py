"""Decode of multi-head latent attention on a GPU, its context in parts; see baton.kernels.mla."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.attention import LINKS
from baton.kernels.scratch import HEADS_OF_LATENT, LEAST_PART, most_parts, parts_of
from baton.kernels.triton.arithmetic import dot, narrow
from baton.kernels.triton.attention_decode import MERGED, merge_parts, part_length
from baton.kernels.triton.attention_prefill import LOG2_E
from baton.kernels.triton.branches import nodes_of
from baton.kernels.triton.kernel import kernel
from baton.kernels.triton.paging import branch_places, page_entries, page_places
from baton.kernels.triton.shapes import SMALLEST_DOT, block, packed, processors

_KEYS = 32  # of one product


def mla_decode(
    q: Tensor,
    pool: Tensor,
    block_tables: Tensor,
    table_rows: Tensor,
    kv_lens: Tensor,
    kv_lens_host: Sequence[int],
    rank: int,
    scale: float,
    *,
    first_key: int = 0,
    nodes: Tensor | None = None,
) -> Tensor:
    """Implement `Kernels.mla_decode`, without a look at the host's lengths."""
    rows, queries, heads, width = q.shape
    page_size = pool.shape[1]
    groups = triton.cdiv(heads, HEADS_OF_LATENT)
    most = most_parts(groups, processors(q.device))
    parts = parts_of(block_tables.shape[1] * page_size, most)
    out = q.new_empty((rows, queries, heads, rank))
    means = q.new_empty((rows * queries, heads, parts, rank), dtype=torch.float32)
    sums = q.new_empty((rows * queries, heads, parts, 2), dtype=torch.float32)
    if not out.numel():
        return out
    _attend_latents[(parts, groups, rows * queries)](
        q.contiguous(), packed(pool), block_tables, table_rows, kv_lens, nodes, means, sums,
        scale, pool.stride(0), block_tables.stride(0), heads, parts, queries,
        PAGE_SIZE=page_size, RANK=rank, WIDTH=width, BLOCK_R=block(rank, SMALLEST_DOT),
        BLOCK_T=block(width - rank, SMALLEST_DOT), HEADS=HEADS_OF_LATENT, KEYS=_KEYS,
        LEAST=LEAST_PART, MOST=most, FIRST=first_key, LINKS=LINKS, num_warps=4, num_stages=3,
    )  # fmt: skip
    merge_parts[(heads, rows * queries)](
        means, sums, kv_lens, out, heads, parts, LEAST=LEAST_PART, MOST=most,
        QUERIES=queries, MERGED=MERGED, WIDTH=rank, BLOCK_D=block(rank), num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _attend_tile(
    latent_q, turned_q, places, held, visible, r, t, in_r, in_t, scale, best, total, mean
):
    """Return the softmax over the tokens so far and those of one tile that are `visible`.

    places: [KEYS], pointers to the latents of the tile, which may be read where `held`
    """
    latents = tl.load(
        places[:, None] + r[None, :], mask=held[:, None] & in_r[None, :], other=0.0
    ).to(latent_q.dtype)
    turned = tl.load(
        places[None, :] + t[:, None], mask=held[None, :] & in_t[:, None], other=0.0
    ).to(latent_q.dtype)
    scores = (dot(latent_q, tl.trans(latents)) + dot(turned_q, turned)) * scale
    scores = tl.where(visible[None, :], scores * LOG2_E, -1e30)
    better = tl.maximum(best, tl.max(scores, axis=1))
    weights = tl.where(visible[None, :], tl.exp2(scores - better[:, None]), 0.0)
    faded = tl.exp2(best - better)
    total = total * faded + tl.sum(weights, axis=1)
    mean = mean * faded[:, None] + dot(narrow(weights, latents.dtype), latents)
    return better, total, mean


@kernel
def _attend_latents(
    q,
    pool,
    block_tables,
    table_rows,
    kv_lens,
    nodes,
    means,
    sums,
    scale,
    page_stride,
    table_stride,
    heads,
    parts,
    queries,
    PAGE_SIZE: tl.constexpr,
    RANK: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_T: tl.constexpr,
    HEADS: tl.constexpr,
    KEYS: tl.constexpr,
    LEAST: tl.constexpr,
    MOST: tl.constexpr,
    FIRST: tl.constexpr,
    LINKS: tl.constexpr,
):
    """Attend to one part of one row's context, for one of its new tokens and some heads. Positions
    and pages: as in attention_decode.
    """
    part = tl.program_id(0)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    each = tl.program_id(2).to(tl.int64)  # of all rows' new tokens
    row, query = each // queries, each % queries
    kv_len = tl.load(kv_lens + row).to(tl.int32)
    length = part_length(kv_len, LEAST, MOST)
    begin = part * length
    end = tl.minimum(begin + length, kv_len)
    if begin < end:
        in_h = head < heads
        r, t = tl.arange(0, BLOCK_R), RANK + tl.arange(0, BLOCK_T)
        in_r, in_t = r < RANK, t < WIDTH
        own = q + (each * heads + head)[:, None] * WIDTH
        latent_q = tl.load(own + r[None, :], mask=in_h[:, None] & in_r[None, :], other=0.0)
        turned_q = tl.load(own + t[None, :], mask=in_h[:, None] & in_t[None, :], other=0.0)
        table = block_tables + tl.load(table_rows + row) * table_stride
        best = tl.full((HEADS,), -1e30, tl.float32)
        total = tl.zeros((HEADS,), tl.float32)
        mean = tl.zeros((HEADS, BLOCK_R), tl.float32)
        # As in attention_decode. Nodes of a tree are rows of one new token each.
        ordered, path, branch = end, 0, 0
        if nodes is not None:
            path = tl.load(nodes + row)
            branch = kv_len - nodes_of(path, LINKS)
            ordered = tl.minimum(end, tl.maximum(begin, branch // KEYS * KEYS))
        next_page = page_entries(table, begin, end, PAGE_SIZE, KEYS)
        for first in range(begin, ordered, KEYS):
            position, held, inside = page_places(first, end, WIDTH, PAGE_SIZE, KEYS)
            if FIRST > 0:
                held = held & (position >= FIRST)
            page = next_page.to(tl.int64)
            next_page = page_entries(table, first + KEYS, end, PAGE_SIZE, KEYS)
            visible = held & (position - (kv_len - queries) <= query)
            best, total, mean = _attend_tile(
                latent_q, turned_q, pool + page * page_stride + inside, held, visible, r, t, in_r,
                in_t, scale, best, total, mean,
            )  # fmt: skip
        if nodes is not None:
            for first in range(ordered, end, KEYS):
                position, held, page, inside = branch_places(
                    table, first, end, branch, path, WIDTH, PAGE_SIZE, KEYS, LINKS
                )
                if FIRST > 0:
                    held = held & (position >= FIRST)
                best, total, mean = _attend_tile(
                    latent_q, turned_q, pool + page * page_stride + inside, held, held, r, t, in_r,
                    in_t, scale, best, total, mean,
                )  # fmt: skip
        place = (each * heads + head) * parts + part
        stored = in_h[:, None] & in_r[None, :]
        tl.store(means + place[:, None] * RANK + r[None, :], mean, mask=stored)
        tl.store(sums + place * 2, best, mask=in_h)
        tl.store(sums + place * 2 + 1, total, mask=in_h)
