"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434) over pages of latents.

A token's cache is one row of W = rank + R values that all heads share: a normed latent, then the R
rotated channels of its key. Head h's key is [up_k[h] latent | rotated] and its value up_v[h]
latent, where `up` [H, N + V, rank] holds up_k's N rows, then up_v's V rows.

Decode works on the latents themselves: `mla_query` takes the query through up_k, once a token,
instead of every cached token's key through it, and `from_latent` takes the mean latent through
up_v. Prefill expands keys and values, which is fewer operations where queries are many.

Position `p` of a row lies in page `block_tables[table_rows[row], p // page_size]` at offset
`p % page_size`, of a pool [pages, page_size, W] that is strided over pages. Page 0 is padding.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from baton.kernels.attention import branch_places, gather_seen, parts_memory
from baton.kernels.linear import linear_native
from baton.kernels.native.arguments import DTYPES
from baton.kernels.native.recorder import SMALL, Native
from baton.kernels.rope import apply_rope
from baton.kernels.scratch import EXPANDED_ON_CPU as _EXPANDED


def latent_write(latents: Tensor, pool: Tensor, token_pages: Tensor, token_offsets: Tensor) -> None:
    """Implement `Kernels.latent_write` in torch."""
    pool.index_put_((token_pages, token_offsets), latents.to(pool.dtype))


def latent_write_native(
    native: Native, latents: Tensor, pool: Tensor, token_pages: Tensor, token_offsets: Tensor
) -> None:
    """Implement `Kernels.latent_write` natively, for float32 latents; pools in float32 or
    bfloat16."""
    tokens, width = latents.shape
    native.call(
        "latent_write",
        latents.numel() < SMALL,
        latents=latents,
        pool=pool,
        pages=token_pages,
        offsets=token_offsets,
        tokens=tokens,
        width=width,
        latent_stride=latents.stride(0),
        page_stride=pool.stride(0),
        dtype=DTYPES[pool.dtype],
    )


def apply_partial_rope(
    x: Tensor, rotated: int, cache: Tensor, positions: Tensor, interleaved: bool
) -> Tensor:
    """Implement `Kernels.apply_partial_rope` in torch."""
    tail = x[..., x.shape[2] - rotated :]
    if interleaved:
        tail = tail.reshape(*tail.shape[:2], rotated // 2, 2).transpose(2, 3).flatten(2)
    return apply_rope(tail, cache, positions)


def apply_partial_rope_native(
    native: Native, x: Tensor, rotated: int, cache: Tensor, positions: Tensor, interleaved: bool
) -> Tensor:
    """Implement `Kernels.apply_partial_rope` natively, for float32 x."""
    rows, heads = x.shape[:2]
    tail = x[..., x.shape[2] - rotated :]
    out = native.empty(rows, heads, rotated)
    native.call(
        "apply_partial_rope",
        out.numel() < SMALL,
        x=tail,
        cache=cache,
        positions=positions,
        out=out,
        rows=rows,
        heads=heads,
        rotated=rotated,
        x_stride=x.stride(0),
        head_stride=x.stride(1),
        interleaved=int(interleaved),
    )
    return out


def mla_query(plain: Tensor, rotated: Tensor, up: Tensor) -> Tensor:
    """Implement `Kernels.mla_query` in torch."""
    rows, heads, keys = plain.shape
    rank = up.shape[2]
    out = plain.new_empty((rows, heads, rank + rotated.shape[2]))
    # A product head by head, written where it belongs: one launch on a GPU, with the copy two.
    met = out[..., :rank].transpose(0, 1)
    torch.bmm(plain.transpose(0, 1), up[:, :keys].to(plain.dtype), out=met)
    out[..., rank:] = rotated
    return out


def mla_query_native(native: Native, plain: Tensor, rotated: Tensor, up: Tensor) -> Tensor:
    """Implement `Kernels.mla_query` natively, for float32 queries; `up` in float32 or bfloat16."""
    rows, heads, keys = plain.shape
    tail, rank = rotated.shape[2], up.shape[2]
    out = native.empty(rows, heads, rank + tail)
    native.call(
        "mla_query",
        rows * heads * keys * rank < SMALL,
        plain=plain,
        rotated=rotated,
        up=up,
        out=out,
        rows=rows,
        heads=heads,
        keys=keys,
        values=up.shape[1] - keys,
        rank=rank,
        tail=tail,
        plain_stride=plain.stride(0),
        plain_head=plain.stride(1),
        rotated_stride=rotated.stride(0),
        rotated_head=rotated.stride(1),
        dtype=DTYPES[up.dtype],
    )
    return out


def from_latent(mean: Tensor, up: Tensor, key_rows: int) -> Tensor:
    """Implement `Kernels.from_latent` in torch."""
    values = up[:, key_rows:].to(mean.dtype)
    out = mean.new_empty((*mean.shape[:2], values.shape[1]))
    torch.bmm(mean.transpose(0, 1), values.transpose(1, 2), out=out.transpose(0, 1))
    return out


def from_latent_native(native: Native, mean: Tensor, up: Tensor, key_rows: int) -> Tensor:
    """Implement `Kernels.from_latent` natively, for contiguous float32 means; `up` in float32 or
    bfloat16."""
    rows, heads, rank = mean.shape
    values = up.shape[1] - key_rows
    out = native.empty(rows, heads, values)
    dtype = DTYPES[up.dtype]
    native.call(
        "from_latent",
        rows * heads * values * rank < SMALL,
        mean=mean,
        up=up,
        out=out,
        rows=rows,
        heads=heads,
        keys=key_rows,
        values=values,
        rank=rank,
        dtype=dtype,
    )
    return out


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
    """Implement `Kernels.mla_decode` in torch."""
    rows, queries, heads, width = q.shape
    page_size = pool.shape[1]
    widest = max(1, -(-max(kv_lens_host, default=0) // page_size))
    pages = block_tables[:, :widest].index_select(0, table_rows)
    positions = torch.arange(pages.shape[1] * page_size, device=q.device)
    there = (positions < kv_lens[:, None]) & (positions >= first_key)
    places = None if nodes is None else branch_places(positions, kv_lens, nodes)
    latents = gather_seen(pool[:, :, None], pages, there, q.dtype, places)
    order = torch.arange(queries, device=q.device)[:, None]  # of the newest tokens
    ends = (kv_lens[:, None] - queries)[:, None] + order
    seen = (positions <= ends) & (positions >= first_key)
    # A row that sees no token sees the zeros of position 0: a softmax over nothing would be NaN.
    seen |= (positions == 0) & (kv_lens[:, None, None] <= first_key)
    mask = seen[:, :, None].expand(rows, queries, heads, len(positions)).flatten(1, 2)
    # The latents serve as values too, so the operator sees heads of one size; what it makes of
    # the rotated channels is dropped.
    kv = latents.transpose(1, 2)
    out = F.scaled_dot_product_attention(
        q.flatten(1, 2)[:, None], kv, kv, attn_mask=mask[:, None], scale=scale
    )
    return out.view(rows, queries, heads, width)[..., :rank]


def mla_decode_native(
    native: Native,
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
    """Implement `Kernels.mla_decode` natively, for one new token a row and contiguous float32 q;
    pools in float32 or bfloat16. It reads the lengths from `kv_lens` alone."""
    rows, _, heads, width = q.shape
    out = native.empty(rows, 1, heads, rank)
    parts = parts_memory(native, rows, heads, rank)
    native.call(
        "mla_decode",
        q=q,
        pool=pool,
        tables=block_tables,
        table_rows=table_rows,
        kv_lens=kv_lens,
        nodes=nodes,
        out=out,
        parts=parts,
        rows=rows,
        heads=heads,
        width=width,
        rank=rank,
        page_size=pool.shape[1],
        page_stride=pool.stride(0),
        table_stride=block_tables.stride(0),
        dtype=DTYPES[pool.dtype],
        first_key=first_key,
        scale=scale,
    )
    return out


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
    """Implement `Kernels.mla_prefill` in torch."""
    q = torch.cat((plain, rotated), dim=-1)
    out = q.new_empty(q.shape[0], q.shape[1], up.shape[1] - plain.shape[2])
    page_size = pool.shape[1]
    for row, kv_len in enumerate(kv_lens_host):
        start, end = cu_seqlens_q_host[row], cu_seqlens_q_host[row + 1]
        if start == end:
            continue
        pages = block_tables[:, : -(-kv_len // page_size)].index_select(0, table_rows[row])[0]
        latents = pool.index_select(0, pages).flatten(0, 1)[:kv_len].to(q.dtype)
        at_once = max(1, _EXPANDED // (kv_len * q.shape[2]))
        for first in range(0, up.shape[0], at_once):
            heads = slice(first, first + at_once)
            out[start:end, heads] = _expanded(q[start:end, heads], latents, up[heads], scale)
    return out


def mla_prefill_native(
    native: Native,
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
    """Implement `Kernels.mla_prefill` natively, for float32 queries, and a pool and `up` of one
    dtype, float32 or bfloat16. Of the host lengths it reads the sum alone."""
    tokens, heads, key_rows = plain.shape
    each, rank = up.shape[1:]
    values = each - key_rows
    out = native.empty(tokens, heads, values)
    latents = _read_latents(native, pool, block_tables, table_rows, kv_lens, kv_lens_host)
    at_once = max(1, _EXPANDED // (max(1, latents.shape[0]) * each))
    for first in range(0, heads, at_once):
        some = slice(first, first + at_once)
        matrix = up[some].flatten(0, 1)
        expanded = linear_native(native, latents[:, :rank], matrix)
        native.call(
            "mla_prefill",
            plain=plain[:, some],
            rotated=rotated[:, some],
            expanded=expanded,
            latents=latents,
            starts=cu_seqlens_q,
            kv_lens=kv_lens,
            out=out[:, some],
            rows=len(kv_lens_host),
            tokens=tokens,
            heads=matrix.shape[0] // each,
            keys=key_rows,
            values=values,
            rank=rank,
            tail=rotated.shape[2],
            plain_stride=plain.stride(0),
            plain_head=plain.stride(1),
            rotated_stride=rotated.stride(0),
            rotated_head=rotated.stride(1),
            out_stride=out.stride(0),
            scale=scale,
        )
    return out


def _read_latents(
    native: Native,
    pool: Tensor,
    block_tables: Tensor,
    table_rows: Tensor,
    kv_lens: Tensor,
    kv_lens_host: Sequence[int],
) -> Tensor:
    """Gather the rows' latents end to end: [sum of kv_lens, W] float32."""
    page_size, width = pool.shape[1:]
    latents = native.empty(sum(kv_lens_host), width)
    native.call(
        "latent_read",
        latents.numel() < SMALL,
        pool=pool,
        tables=block_tables,
        table_rows=table_rows,
        kv_lens=kv_lens,
        out=latents,
        rows=len(kv_lens_host),
        tokens=latents.shape[0],
        width=width,
        page_size=page_size,
        page_stride=pool.stride(0),
        table_stride=block_tables.stride(0),
        dtype=DTYPES[pool.dtype],
    )
    return latents


def mla_ref(
    q: Tensor,
    pool: Tensor,
    up: Tensor,
    block_tables: Tensor,
    table_rows: Tensor,
    cu_seqlens_q_host: Sequence[int],
    kv_lens_host: Sequence[int],
    scale: float,
    first_key: int = 0,
) -> Tensor:
    """Attend through expanded keys and values, head by head and token by token; returns float64
    [T, H, V]. For tests.

    The reference of prefill, and of decode with its projections before and after.
    `first_key` as in paged_attn_ref.
    """
    page_size, width = pool.shape[1:]
    rank = up.shape[2]
    key_rows = q.shape[2] - (width - rank)
    out = torch.zeros(q.shape[0], q.shape[1], up.shape[1] - key_rows, dtype=torch.float64)
    for row, kv_len in enumerate(kv_lens_host):
        start, end = cu_seqlens_q_host[row], cu_seqlens_q_host[row + 1]
        old = kv_len - (end - start)
        for t in range(start, end):
            entries = [
                pool[block_tables[table_rows[row], p // page_size], p % page_size].double()
                for p in range(first_key, old + t - start + 1)
            ]
            if not entries:
                continue
            for head, weight in enumerate(up.double()):
                keys = torch.stack(
                    [torch.cat((weight[:key_rows] @ e[:rank], e[rank:])) for e in entries]
                )
                values = torch.stack([weight[key_rows:] @ e[:rank] for e in entries])
                scores = keys @ q[t, head].double() * scale
                out[t, head] = scores.softmax(dim=0) @ values
    return out


def _expanded(q: Tensor, latents: Tensor, up: Tensor, scale: float) -> Tensor:
    """Attend in one row with some heads: q [L, h, N + R], latents [S, W], up [h, N + V, rank] ->
    [L, h, V]."""
    (new, heads, channels), (total, width) = q.shape, latents.shape
    rank, rotated = up.shape[2], width - up.shape[2]
    key_rows = channels - rotated
    expanded = torch.matmul(latents[:, :rank], up.to(q.dtype).transpose(1, 2))  # [h, S, N + V]
    rotated_keys = latents[:, rank:].expand(heads, total, rotated)
    keys = torch.cat((expanded[..., :key_rows], rotated_keys), dim=-1)
    values = expanded[..., key_rows:]
    # The fused operator of a CPU wants keys and values of one size.
    padded = F.pad(values, (0, max(0, channels - values.shape[2])))
    visible = None
    if new < total:
        order = torch.arange(total, device=q.device)
        visible = order <= order[total - new :, None]
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        keys[None],
        padded[None],
        attn_mask=visible,
        is_causal=visible is None,
        scale=scale,
    )
    return out[0, :, :, : values.shape[2]].transpose(0, 1)
