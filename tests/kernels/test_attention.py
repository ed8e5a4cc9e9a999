"""Paged attention against a token-by-token float64 reference, on pools full of poison."""

from dataclasses import dataclass

import pytest
import torch
from ragged_batches import seeded
from torch import Tensor

from baton.kernels.attention import kv_write, paged_attn_decode, paged_attn_prefill, paged_attn_ref


@dataclass(frozen=True)
class PagedBatch:
    q: Tensor
    k_pool: Tensor
    v_pool: Tensor
    block_tables: Tensor
    table_rows: Tensor
    cu_seqlens_q: Tensor
    cu_seqlens_q_host: list[int]
    kv_lens: Tensor
    kv_lens_host: list[int]

    def prefill_arguments(self):
        return vars(self)

    def decode_arguments(self):
        return {name: value for name, value in vars(self).items() if "seqlens" not in name}


def paged_batch(
    lengths: list[int],
    prefixes: list[int],
    query_heads: int,
    kv_heads: int,
    page_size: int,
    rng,
    head_dim: int | None = None,
) -> PagedBatch:
    """Rows on shuffled pages; whatever no row may see is NaN, page 0 too."""
    head_dim = head_dim or rng.choice([8, 20])
    kv_lens = [p + n for p, n in zip(prefixes, lengths, strict=True)]
    needed = [-(-kv_len // page_size) for kv_len in kv_lens]
    num_pages = sum(needed) + 4
    free = rng.sample(range(1, num_pages), num_pages - 1)
    # Page-major: keys and values of this layer are the middle of each page.
    pool = torch.full((num_pages, 4, page_size, kv_heads, head_dim), torch.nan)
    k_pool, v_pool = pool[:, 1], pool[:, 2]
    # Rows of the table lie in another order than those of the batch, and some are nobody's.
    block_tables = torch.zeros((len(lengths) + 3, max(needed) + 2), dtype=torch.int32)
    table_rows = rng.sample(range(len(block_tables)), len(lengths))
    for row, kv_len in enumerate(kv_lens):
        pages = [free.pop() for _ in range(needed[row])]
        block_tables[table_rows[row], : len(pages)] = torch.tensor(pages, dtype=torch.int32)
        positions = torch.arange(kv_len)
        kv_write(
            torch.randn(kv_len, kv_heads, head_dim),
            torch.randn(kv_len, kv_heads, head_dim),
            k_pool,
            v_pool,
            torch.tensor(pages, dtype=torch.int64)[positions // page_size],
            positions % page_size,
        )
    cu_seqlens = [0]
    for length in lengths:
        cu_seqlens.append(cu_seqlens[-1] + length)
    q = torch.randn(cu_seqlens[-1], query_heads, head_dim)
    return PagedBatch(
        q, k_pool, v_pool, block_tables, torch.tensor(table_rows),
        torch.tensor(cu_seqlens), cu_seqlens, torch.tensor(kv_lens), kv_lens,
    )  # fmt: skip


@pytest.mark.parametrize("query_heads, kv_heads", [(4, 4), (6, 2), (3, 1)])
@pytest.mark.parametrize(
    "lengths, prefixes, page_size",
    [([1], [0], 16), ([5, 1, 9, 0, 17], [0, 8, 3, 4, 16], 4), ([6, 2], [1, 0], 1)],
)
def test_prefill_matches_the_reference(lengths, prefixes, page_size, query_heads, kv_heads):
    rng = seeded(query_heads * 100 + page_size)
    batch = paged_batch(lengths, prefixes, query_heads, kv_heads, page_size, rng)
    out = paged_attn_prefill(**batch.prefill_arguments(), scale=0.3)
    expected = paged_attn_ref(**batch.prefill_arguments(), scale=0.3)
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("query_heads, kv_heads", [(4, 4), (6, 2), (3, 1)])
@pytest.mark.parametrize("prefixes, page_size", [([0], 16), ([30, 7, 0, 8, 3], 8), ([4, 0], 1)])
def test_decode_matches_the_reference(prefixes, page_size, query_heads, kv_heads):
    rng = seeded(query_heads * 100 + page_size)
    batch = paged_batch([1] * len(prefixes), prefixes, query_heads, kv_heads, page_size, rng)
    out = paged_attn_decode(**batch.decode_arguments(), scale=0.3)
    expected = paged_attn_ref(**batch.prefill_arguments(), scale=0.3)
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)


def test_padding_rows_of_a_decode_batch_get_zeros_and_change_nothing():
    rng = seeded(1)
    batch = paged_batch([1, 1], [9, 3], 4, 2, 4, rng)
    alone = paged_attn_decode(**batch.decode_arguments(), scale=0.5)
    padded = paged_attn_decode(
        q=torch.cat((batch.q, torch.randn(2, *batch.q.shape[1:]))),
        k_pool=batch.k_pool,
        v_pool=batch.v_pool,
        block_tables=batch.block_tables,
        table_rows=torch.cat((batch.table_rows, torch.zeros(2, dtype=torch.int64))),
        kv_lens=torch.cat((batch.kv_lens, torch.zeros(2, dtype=torch.int64))),
        kv_lens_host=[*batch.kv_lens_host, 0, 0],
        scale=0.5,
    )
    torch.testing.assert_close(padded[:2], alone, atol=0.0, rtol=0.0)
    assert torch.equal(padded[2:], torch.zeros_like(padded[2:]))


@pytest.mark.parametrize("prefix", [0, 6])
def test_a_row_alone_equals_the_row_in_a_batch(prefix):
    rng = seeded(prefix)
    batch = paged_batch([7, 11, 3], [5, prefix, 2], 4, 2, 4, rng)
    together = paged_attn_prefill(**batch.prefill_arguments(), scale=0.4)[7:18]
    alone = paged_attn_prefill(
        batch.q[7:18], batch.k_pool, batch.v_pool, batch.block_tables, batch.table_rows[1:2],
        torch.tensor([0, 11]), [0, 11], batch.kv_lens[1:2], batch.kv_lens_host[1:2], 0.4,
    )  # fmt: skip
    assert torch.equal(together, alone)


def test_a_bfloat16_pool_serves_float32_queries():
    rng = seeded(3)
    batch = paged_batch([4, 1], [3, 9], 4, 2, 4, rng)
    arguments = batch.prefill_arguments() | {
        "k_pool": batch.k_pool.bfloat16(),
        "v_pool": batch.v_pool.bfloat16(),
    }
    out = paged_attn_prefill(**arguments, scale=0.3)
    expected = paged_attn_ref(**arguments, scale=0.3)
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)


def test_kv_write_touches_only_the_named_places():
    seeded(5)
    pool = torch.full((5, 2, 3, 2, 4), torch.nan)
    k_pool, v_pool = pool[:, 0], pool[:, 1]
    k, v = torch.randn(4, 2, 4), torch.randn(4, 2, 4)
    pages, offsets = torch.tensor([3, 3, 1, 0]), torch.tensor([1, 2, 0, 0])
    kv_write(k, v, k_pool, v_pool, pages, offsets)
    assert torch.equal(k_pool[pages, offsets], k) and torch.equal(v_pool[pages, offsets], v)
    written = {(3, 1), (3, 2), (1, 0), (0, 0)}
    for page in range(5):
        for offset in range(3):
            poisoned = bool(k_pool[page, offset].isnan().all())
            assert poisoned == ((page, offset) not in written)
