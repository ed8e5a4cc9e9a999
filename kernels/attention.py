"""Attention over pages of keys and values, with grouped query heads.

A layer sees the page-major pool as `[pages, page_size, KH, D]`, one view for keys and one for
values, strided over pages (one page holds every layer). Position `p` of a row lies in page
`block_tables[table_rows[row], p // page_size]` at offset `p % page_size`. Page 0 is padding: it may
be written and gathered, but what it holds never reaches a real row.

The CPU versions size their work by host lengths, so a batch must bring them.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from baton.kernels.native.arguments import DTYPES
from baton.kernels.native.recorder import SMALL, Native

_MOST_PARTS = 16  # of a row's context: MOST_PARTS in native/attention_token.h
_ROWS_A_THREAD = 8  # from which on a native thread takes whole rows: PIECES in native/team.h


def kv_write(
    k: Tensor, v: Tensor, k_pool: Tensor, v_pool: Tensor, token_pages: Tensor, token_offsets: Tensor
) -> None:
    """Implement `Kernels.kv_write` in torch."""
    k_pool.index_put_((token_pages, token_offsets), k.to(k_pool.dtype))
    v_pool.index_put_((token_pages, token_offsets), v.to(v_pool.dtype))


def kv_write_native(
    native: Native,
    k: Tensor,
    v: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    token_pages: Tensor,
    token_offsets: Tensor,
) -> None:
    """Implement `Kernels.kv_write` natively, for float32 k and v whose heads lie end to end; pools
    in float32 or bfloat16."""
    tokens, kv_heads, head_dim = k.shape
    native.call(
        "kv_write",
        k.numel() < SMALL,
        k=k,
        v=v,
        k_pool=k_pool,
        v_pool=v_pool,
        pages=token_pages,
        offsets=token_offsets,
        tokens=tokens,
        width=kv_heads * head_dim,
        k_stride=k.stride(0),
        v_stride=v.stride(0),
        page_stride=k_pool.stride(0),
        dtype=DTYPES[k_pool.dtype],
    )


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
    """Implement `Kernels.paged_attn_prefill` in torch."""
    out = torch.empty_like(q)
    page_size = k_pool.shape[1]
    for row, kv_len in enumerate(kv_lens_host):
        start, end = cu_seqlens_q_host[row], cu_seqlens_q_host[row + 1]
        if start == end:
            continue
        # Selected on the device: an index that is read on the host would wait for it.
        pages = block_tables[:, : -(-kv_len // page_size)].index_select(0, table_rows[row])[0]
        keys = k_pool.index_select(0, pages).flatten(0, 1)[:kv_len].to(q.dtype)
        values = v_pool.index_select(0, pages).flatten(0, 1)[:kv_len].to(q.dtype)
        rows = q[start:end]
        prefix = kv_len - (end - start)
        visible = _visible(end - start, kv_len, prefix, q.device) if prefix else None
        out[start:end] = _fused(rows, keys, values, visible, scale)
    return out


def paged_attn_prefill_native(
    native: Native,
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
    """Implement `Kernels.paged_attn_prefill` natively, for float32 q whose heads lie end to end;
    pools in float32 or bfloat16. A token's result has the same bits however its
    prompt is cut into chunks."""
    tokens, heads, head_dim = q.shape
    out = native.empty(tokens, heads, head_dim)
    native.call(
        "attn_prefill",
        q=q,
        k_pool=k_pool,
        v_pool=v_pool,
        tables=block_tables,
        table_rows=table_rows,
        starts=cu_seqlens_q,
        kv_lens=kv_lens,
        out=out,
        rows=len(kv_lens_host),
        tokens=tokens,
        heads=heads,
        kv_heads=k_pool.shape[2],
        head_dim=head_dim,
        page_size=k_pool.shape[1],
        q_stride=q.stride(0),
        page_stride=k_pool.stride(0),
        table_stride=block_tables.stride(0),
        dtype=DTYPES[k_pool.dtype],
        scale=scale,
    )
    return out


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
    """Implement `Kernels.paged_attn_decode` in torch."""
    batch, query_heads, head_dim = q.shape
    page_size, kv_heads = k_pool.shape[1:3]
    widest = max(1, -(-max(kv_lens_host, default=0) // page_size))
    pages = block_tables[:, :widest].index_select(0, table_rows)
    positions = torch.arange(pages.shape[1] * page_size, device=q.device)
    seen = (positions < kv_lens[:, None]) & (positions >= first_key)
    places = None if nodes is None else branch_places(positions, kv_lens, nodes)
    keys = gather_seen(k_pool, pages, seen, q.dtype, places)
    values = gather_seen(v_pool, pages, seen, q.dtype, places)
    # A row that sees no token sees the zeros of position 0: a softmax over nothing would be NaN.
    seen |= (positions == 0) & (kv_lens[:, None] <= first_key)
    # The query heads of one KV head stand where a sequence would: no key is repeated for them.
    grouped = q.reshape(batch, kv_heads, query_heads // kv_heads, head_dim)
    keys, values = keys.transpose(1, 2), values.transpose(1, 2)
    mask = seen[:, None, None, :]
    out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=scale)
    return out.reshape(batch, query_heads, head_dim)


def paged_attn_decode_native(
    native: Native,
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
    """Implement `Kernels.paged_attn_decode` natively, for float32 q whose heads lie end to end;
    pools in float32 or bfloat16. It reads the lengths from `kv_lens` alone."""
    rows, heads, head_dim = q.shape
    out = native.empty(rows, heads, head_dim)
    parts = parts_memory(native, rows, heads, head_dim)
    native.call(
        "attn_decode",
        q=q,
        k_pool=k_pool,
        v_pool=v_pool,
        tables=block_tables,
        table_rows=table_rows,
        kv_lens=kv_lens,
        nodes=nodes,
        out=out,
        parts=parts,
        rows=rows,
        heads=heads,
        kv_heads=k_pool.shape[2],
        head_dim=head_dim,
        page_size=k_pool.shape[1],
        q_stride=q.stride(0),
        page_stride=k_pool.stride(0),
        table_stride=block_tables.stride(0),
        dtype=DTYPES[k_pool.dtype],
        first_key=first_key,
        scale=scale,
    )
    return out


def parts_memory(native: Native, rows: int, heads: int, width: int) -> Tensor | None:
    """Return memory for the softmaxes of the parts of each row's context, which threads divide;
    None where there are rows enough for all threads."""
    if rows >= _ROWS_A_THREAD * torch.get_num_threads():
        return None
    return native.empty(rows, _MOST_PARTS, heads, width + 2)


def paged_attn_ref(
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
    first_key: int = 0,
) -> Tensor:
    """Compute paged attention token by token and head by head in float64; returns float64 [T, QH,
    D]. For tests.

    The reference of prefill, and of decode with one token a row. first_key: the first token that
    any sees; the result of one that sees none is zeros.
    """
    page_size, kv_heads = k_pool.shape[1:3]
    per_head = q.shape[1] // kv_heads
    out = torch.zeros(q.shape, dtype=torch.float64)
    for row, kv_len in enumerate(kv_lens_host):
        start, end = cu_seqlens_q_host[row], cu_seqlens_q_host[row + 1]
        table = block_tables[table_rows[row]]
        places = [(table[p // page_size], p % page_size) for p in range(kv_len)]
        for t in range(start, end):
            last = kv_len - (end - t)
            for head in range(q.shape[1]):
                seen = places[first_key : last + 1]
                if not seen:
                    continue
                kv = [(page, offset, head // per_head) for page, offset in seen]
                keys = torch.stack([k_pool[place].double() for place in kv])
                values = torch.stack([v_pool[place].double() for place in kv])
                scores = keys @ q[t, head].double() * scale
                out[t, head] = scores.softmax(dim=0) @ values
    return out


LINKS = 63
"""Bits of a node's links: tokens of a tree, at most, the newest token of its row among them."""
# The integers that a float's bits are masked as.
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def branch_places(positions: Tensor, kv_lens: Tensor, nodes: Tensor) -> Tensor:
    """Return where the positions of each row lie, as `nodes` say: [B, S] int64; past a row's end
    anywhere. positions: [S] int64; kv_lens, nodes: [B] int64.
    """
    order = torch.arange(LINKS, device=nodes.device)
    there = (nodes[:, None] >> order) & 1
    behind = torch.argsort(1 - there, dim=1, stable=True)  # places behind the first, by depth
    first = (kv_lens - there.sum(dim=1))[:, None]
    depths = (positions - first).clamp(0, LINKS - 1)
    places = torch.where(positions < first, positions, first + behind.gather(1, depths))
    return places.clamp(0, len(positions) - 1)


def gather_seen(
    pool: Tensor, pages: Tensor, seen: Tensor, dtype: torch.dtype, places: Tensor | None = None
) -> Tensor:
    """Gather the rows' keys or values in order: [B, S, KH, D], zeros where seen [B, S] is False.

    What lies past a row's length is another's or was never written, and a masked score would let a
    NaN value through; so its bits are cleared. (A masked fill does the same 8 x slower.)

    places: [B, S] int64, where each position lies, see `branch_places`; None: in order.
    """
    batch, length = seen.shape
    gathered = pool.index_select(0, pages.flatten()).to(dtype).view(batch, length, *pool.shape[2:])
    if places is not None:
        gathered = gathered[torch.arange(batch, device=places.device)[:, None], places]
    bits = _BITS[dtype.itemsize]
    gathered.view(bits).bitwise_and_(seen.to(bits).neg_()[:, :, None, None])
    return gathered


def _visible(queries: int, kv_len: int, prefix: int, device: torch.device) -> Tensor:
    """Return which positions each new token may see: [queries, kv_len] bool."""
    positions = torch.arange(kv_len, device=device)
    own = torch.arange(prefix, prefix + queries, device=device)[:, None]
    return positions <= own


def _heads_first(q: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return views [KH, queries a KV head, tokens, D] with the KV heads as a batch; keys are not
    repeated."""
    tokens, query_heads, head_dim = q.shape
    kv_heads = keys.shape[1]
    per_head = query_heads // kv_heads
    grouped = q.view(tokens, kv_heads, per_head, head_dim).permute(1, 2, 0, 3)
    shape = (kv_heads, per_head, keys.shape[0], head_dim)
    return (
        grouped,
        keys.transpose(0, 1)[:, None].expand(shape),
        values.transpose(0, 1)[:, None].expand(shape),
    )


def _fused(q: Tensor, keys: Tensor, values: Tensor, visible: Tensor | None, scale: float) -> Tensor:
    """Attend in one row: q [L, QH, D], keys and values [S, KH, D] -> [L, QH, D]; causal without a
    mask."""
    out = F.scaled_dot_product_attention(
        *_heads_first(q, keys, values), attn_mask=visible, is_causal=visible is None, scale=scale
    )
    return out.permute(2, 0, 1, 3).reshape(q.shape)
