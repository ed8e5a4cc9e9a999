"""Latent attention on a GPU against torch's, which has a float64 reference of its own."""

import pytest
import torch
from ragged_batches import seeded
from triton_device import BOUND, assert_near, here

from baton.kernels.mla import apply_partial_rope as torch_rotate_tails
from baton.kernels.mla import mla_decode as torch_mla_decode
from baton.kernels.mla import mla_prefill as torch_mla_prefill
from baton.kernels.rope import rope_cache
from baton.kernels.triton import mla_prefill as prefill_of
from baton.kernels.triton.mla import mla_decode
from baton.kernels.triton.mla_prefill import mla_prefill
from baton.kernels.triton.rope import apply_partial_rope

RANK, WIDTH, PAGE = 20, 28, 16


def latent_batch(kv_lens: list[int], dtype: torch.dtype, rng, page_size: int = PAGE):
    """Latents on shuffled pages, and nothing but NaN elsewhere; block_tables [B + 3, max pages] and
    the row of each."""
    needed = [-(-kv_len // page_size) for kv_len in kv_lens]
    free = rng.sample(range(1, sum(needed) + 3), sum(needed) + 2)
    pool = torch.full((sum(needed) + 3, 2, page_size, WIDTH), torch.nan, dtype=dtype)[:, 1]
    tables = torch.zeros((len(kv_lens) + 3, max(needed) + 1), dtype=torch.int32)
    table_rows = rng.sample(range(len(tables)), len(kv_lens))
    for row, kv_len in enumerate(kv_lens):
        pages = torch.tensor([free.pop() for _ in range(needed[row])], dtype=torch.int64)
        tables[table_rows[row], : len(pages)] = pages
        positions = torch.arange(kv_len)
        filled = torch.randn(kv_len, WIDTH).to(dtype)
        pool[pages[positions // page_size], positions % page_size] = filled
    return pool, tables, torch.tensor(table_rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("queries, page_size", [(1, PAGE), (3, PAGE), (1, 64)])
def test_decode_matches_torchs(queries, page_size, dtype):
    """The second row has two parts; the last is padding. A page of 64 holds whole tiles."""
    rng = seeded(queries)
    kv_lens = [queries + 4, 280, 0]
    pool, tables, table_rows = latent_batch(kv_lens, dtype, rng, page_size)
    q = torch.randn(3, queries, 5, WIDTH).to(dtype)
    lens = torch.tensor(kv_lens)
    arguments = (tables, table_rows, lens)
    out = mla_decode(here(q), here(pool), *here(arguments), (), RANK, 0.2)
    expected = torch_mla_decode(q.float(), pool.float(), *arguments, kv_lens, RANK, 0.2)
    assert_near(out[:2], expected[:2], BOUND[dtype])
    assert not out[2].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("page_size", [PAGE, 64])
def test_decode_begins_at_the_first_key(page_size, dtype):
    """Tokens before it are NaN; the last row has none from it on."""
    rng = seeded(page_size)
    kv_lens = [5, 280, 1]
    pool, tables, table_rows = latent_batch(kv_lens, dtype, rng, page_size)
    pool[tables[table_rows, 0].long(), 0] = torch.nan
    q = torch.randn(3, 1, 5, WIDTH).to(dtype)
    lens = torch.tensor(kv_lens)
    out = mla_decode(*here((q, pool, tables, table_rows, lens)), (), RANK, 0.2, first_key=1)
    expected = torch_mla_decode(
        q.float(), pool.float(), tables, table_rows, lens, kv_lens, RANK, 0.2, first_key=1
    )
    assert_near(out[:2], expected[:2], BOUND[dtype])
    assert not out[2].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "lengths, prefixes", [([1], [0]), ([40, 1, 0, 18], [0, 70, 5, 33]), ([17], [16])]
)
def test_prompts_after_any_prefix_match_torchs(lengths, prefixes, dtype, monkeypatch):
    rng = seeded(sum(lengths))
    heads, key, values = 3, 12, 18
    kv_lens = [prefix + length for prefix, length in zip(prefixes, lengths, strict=True)]
    pool, tables, table_rows = latent_batch(kv_lens, dtype, rng)
    starts = [sum(lengths[:row]) for row in range(len(lengths) + 1)]
    q = torch.randn(starts[-1], heads, key + WIDTH - RANK).to(dtype)  # its parts are strided views
    up = torch.randn(heads, key + values, RANK).to(dtype)
    lens = torch.tensor(starts), torch.tensor(kv_lens)
    expected = torch_mla_prefill(
        q.float()[..., :key], q.float()[..., key:], pool.float(), up.float(), tables, table_rows,
        lens[0], starts, lens[1], kv_lens, 0.2,
    )  # fmt: skip
    own_q, own_pool, own_up = here((q, pool, up))
    own_tables, own_rows, cu_seqlens, own_lens = here((tables, table_rows, *lens))
    for at_once in (1 << 20, 1):  # all heads, and a head at a time
        monkeypatch.setattr(prefill_of, "_EXPANDED", at_once)
        out = mla_prefill(
            own_q[..., :key], own_q[..., key:], own_pool, own_up, own_tables,
            own_rows, cu_seqlens, starts, own_lens, kv_lens, 0.2,
        )  # fmt: skip
        assert out.dtype == dtype
        assert_near(out, expected, BOUND[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("interleaved", [False, True])
def test_rotated_tails_match_torchs(interleaved, dtype):
    seeded(interleaved)
    x = torch.randn(5, 11, 24).to(dtype)[:, 1:10]  # strided over tokens and, below, over heads
    cache, positions = rope_cache(torch.rand(6), 40), torch.tensor([0, 39, 7, 7, 3])
    out = apply_partial_rope(here(x[:, ::2]), 12, here(cache), here(positions), interleaved)
    expected = torch_rotate_tails(x[:, ::2].float(), 12, cache, positions, interleaved)
    assert out.dtype == dtype
    assert_near(out, expected, BOUND[dtype])
