"""Latent attention of prompts on a GPU, on what the latents expand to; see baton.kernels.mla.

The latents of a batch's rows are gathered end to end, taken through `up` by one whole matrix
product, and met by a flash attention whose keys are half expanded, half the rotated channels that
all heads share. Where contexts are long that goes by heads, some at a time.
"""

from collections.abc import Sequence
from itertools import pairwise

import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.scratch import EXPANDED_ON_GPU as _EXPANDED
from baton.kernels.triton.arithmetic import dot, narrow
from baton.kernels.triton.attention_prefill import LOG2_E, Tiles, softened
from baton.kernels.triton.kernel import kernel
from baton.kernels.triton.shapes import SMALLEST_DOT, block, packed

_GATHERED = 16  # tokens that one program gathers


def _tiles(wide: bool) -> Tiles:
    """Return the tiles in float32 or in bfloat16."""
    return Tiles(32, 32, 4, 2) if wide else Tiles(128, 64, 8, 3)


def mla_prefill(
    plain: Tensor,
    rotated: Tensor,
    pool: Tensor,
    up: Tensor,
    block_tables: Tensor,
    table_rows: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_q_host: Sequence[int],
    kv_lens: Tensor,
    kv_lens_host: Sequence[int],
    scale: float,
) -> Tensor:
    """Implement `Kernels.mla_prefill`. Host lengths size what is expanded."""
    tokens, heads, key_rows = plain.shape
    each, rank = up.shape[1:]
    values = each - key_rows
    out = plain.new_empty((tokens, heads, values))
    if not tokens:
        return out
    kv_ends = kv_lens.cumsum(0)  # in the latents of all rows
    latents = _gathered(pool, block_tables, table_rows, kv_lens, kv_ends, kv_lens_host, plain)
    total, width = latents.shape
    longest = max(end - start for start, end in pairwise(cu_seqlens_q_host))
    tiles = _tiles(wide=plain.element_size() == 4)
    queries = min(tiles.queries, block(longest, SMALLEST_DOT))
    at_once = min(heads, max(1, _EXPANDED // (total * each)))
    for first in range(0, heads, at_once):
        some = slice(first, first + at_once)
        matrix = up[some].flatten(0, 1).to(plain.dtype)
        expanded = latents[:, :rank] @ matrix.t()
        _attend_expanded[(triton.cdiv(longest, queries), len(matrix) // each, len(kv_lens_host))](
            _heads_last(plain[:, some]), _heads_last(rotated[:, some]), expanded, latents,
            cu_seqlens_q, kv_lens, kv_ends, out[:, some], scale * LOG2_E.value, plain.stride(0),
            plain.stride(1), rotated.stride(0), rotated.stride(1), expanded.stride(0),
            heads * values,
            PLAIN=key_rows, TURNED=width - rank, VALUES=values, RANK=rank,
            BLOCK_N=block(key_rows, SMALLEST_DOT), BLOCK_T=block(width - rank, SMALLEST_DOT),
            BLOCK_V=block(values, SMALLEST_DOT), QUERIES=queries,
            KEYS=tiles.keys, num_warps=tiles.warps if queries > 32 else 4, num_stages=tiles.stages,
        )  # fmt: skip
    return out


def _heads_last(x: Tensor) -> Tensor:
    """Return `x` [T, H, D], whose heads may lie apart, but not its channels."""
    packed(x[0])
    return x


def _gathered(
    pool: Tensor,
    block_tables: Tensor,
    table_rows: Tensor,
    kv_lens: Tensor,
    kv_ends: Tensor,
    kv_lens_host: Sequence[int],
    like: Tensor,
) -> Tensor:
    """Gather the rows' latents end to end: [sum of kv_lens, W], dtype of `like`."""
    page_size, width = pool.shape[1:]
    rows = len(kv_lens_host)
    latents = like.new_empty((sum(kv_lens_host), width))
    _gather[(triton.cdiv(max(kv_lens_host), _GATHERED), rows)](
        packed(pool), block_tables, table_rows, kv_lens, kv_ends, latents, pool.stride(0),
        block_tables.stride(0), PAGE_SIZE=page_size, WIDTH=width, BLOCK=block(width),
        TOKENS=_GATHERED, num_warps=8,
    )  # fmt: skip
    return latents


@kernel
def _gather(
    pool,
    block_tables,
    table_rows,
    kv_lens,
    kv_ends,
    latents,
    page_stride,
    table_stride,
    PAGE_SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Gather some tokens of one row."""
    row = tl.program_id(1)
    position = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    c = tl.arange(0, BLOCK)
    kv_len = tl.load(kv_lens + row)
    held = position < kv_len
    mask = held[:, None] & (c < WIDTH)[None, :]
    table = block_tables + tl.load(table_rows + row) * table_stride
    page = tl.load(table + position // PAGE_SIZE, mask=held, other=0).to(tl.int64)
    place = page * page_stride + (position % PAGE_SIZE) * WIDTH
    values = tl.load(pool + place[:, None] + c[None, :], mask=mask, other=0.0)
    target = (tl.load(kv_ends + row) - kv_len + position) * WIDTH
    tl.store(latents + target[:, None] + c[None, :], values, mask=mask)


@kernel
def _attend_expanded(
    plain,
    turned,
    expanded,
    latents,
    cu_seqlens_q,
    kv_lens,
    kv_ends,
    out,
    scale,
    plain_stride,
    plain_head,
    turned_stride,
    turned_head,
    expanded_stride,
    out_stride,
    PLAIN: tl.constexpr,
    TURNED: tl.constexpr,
    VALUES: tl.constexpr,
    RANK: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_V: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Attend from some new tokens of one row, for one head. The last tokens, which see most, go
    first."""
    head, row = tl.program_id(1), tl.program_id(2)
    first_block = (tl.num_programs(0) - 1 - tl.program_id(0)) * QUERIES
    start, end = tl.load(cu_seqlens_q + row), tl.load(cu_seqlens_q + row + 1)
    if start + first_block < end:
        within = first_block + tl.arange(0, QUERIES)
        token = start + within
        inside = token < end
        kv_len = tl.load(kv_lens + row).to(tl.int32)  # fewer registers than int64
        prefix = kv_len - (end - start).to(tl.int32)
        own = prefix + within  # absolute positions
        n, t, v = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_V)
        in_n, in_t, in_v = n < PLAIN, t < TURNED, v < VALUES
        plain_q = tl.load(
            plain + token[:, None] * plain_stride + head * plain_head + n[None, :],
            mask=inside[:, None] & in_n[None, :],
            other=0.0,
        )
        turned_q = tl.load(
            turned + token[:, None] * turned_stride + head * turned_head + t[None, :],
            mask=inside[:, None] & in_t[None, :],
            other=0.0,
        )
        before = tl.load(kv_ends + row) - kv_len
        own_keys = expanded + before * expanded_stride + head * (PLAIN + VALUES)
        shared_keys = latents + before * (RANK + TURNED) + RANK
        best = tl.full((QUERIES,), -1e30, tl.float32)
        total = tl.zeros((QUERIES,), tl.float32)
        mean = tl.zeros((QUERIES, BLOCK_V), tl.float32)
        # All queries see all keys of the first tiles, which take no masks.
        clear = (prefix + first_block + 1) // KEYS * KEYS
        for first in range(0, clear, KEYS):
            best, total, mean = _tile(
                plain_q, turned_q, best, total, mean, own_keys, shared_keys, first, own, kv_len,
                scale, expanded_stride, PLAIN, TURNED, VALUES, RANK, BLOCK_N, BLOCK_T, BLOCK_V,
                KEYS, MASKED=False,
            )  # fmt: skip
        for first in range(clear, tl.minimum(prefix + first_block + QUERIES, kv_len), KEYS):
            best, total, mean = _tile(
                plain_q, turned_q, best, total, mean, own_keys, shared_keys, first, own, kv_len,
                scale, expanded_stride, PLAIN, TURNED, VALUES, RANK, BLOCK_N, BLOCK_T, BLOCK_V,
                KEYS, MASKED=True,
            )  # fmt: skip
        mean = mean / tl.where(inside, total, 1.0)[:, None]
        target = out + token[:, None] * out_stride + head * VALUES + v[None, :]
        tl.store(target, narrow(mean, out.dtype.element_ty), mask=inside[:, None] & in_v[None, :])


@triton.jit
def _tile(
    plain_q,
    turned_q,
    best,
    total,
    mean,
    own_keys,
    shared_keys,
    first,
    own,
    kv_len,
    scale,
    expanded_stride,
    PLAIN: tl.constexpr,
    TURNED: tl.constexpr,
    VALUES: tl.constexpr,
    RANK: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_V: tl.constexpr,
    KEYS: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Attend to one tile of keys: return best, total and mean with it."""
    n, t, v = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_V)
    position = first + tl.arange(0, KEYS)
    in_n, in_t, in_v = (n < PLAIN)[:, None], (t < TURNED)[:, None], (v < VALUES)[None, :]
    if MASKED:
        held = position < kv_len
        in_n, in_t, in_v = in_n & held[None, :], in_t & held[None, :], in_v & held[:, None]
    place = position.to(tl.int64)
    at = own_keys + place[None, :] * expanded_stride + n[:, None]
    keys = tl.load(at, mask=in_n, other=0.0)
    at = shared_keys + place[None, :] * (RANK + TURNED) + t[:, None]
    turned_keys = tl.load(at, mask=in_t, other=0.0)
    scores = dot(plain_q, keys) + dot(turned_q, turned_keys)
    if MASKED:
        scores = tl.where(position[None, :] <= own[:, None], scores, -1e30)
    weights, better, total, faded = softened(scores, best, total, scale)
    at = own_keys + PLAIN + place[:, None] * expanded_stride + v[None, :]
    values = tl.load(at, mask=in_v, other=0.0)
    return better, total, mean * faded[:, None] + dot(narrow(weights, values.dtype), values)
