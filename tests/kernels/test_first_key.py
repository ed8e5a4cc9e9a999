"""Decode that begins at a given token of a row: what lies before it is never seen."""

import dataclasses

import pytest
import torch
from kernels.native_cases import assert_near
from kernels.test_attention import paged_batch
from kernels.test_mla import KEY, RANK, SCALE, latent_batch
from ragged_batches import seeded
from torch import Tensor

from baton.kernels.attention import paged_attn_decode, paged_attn_decode_native, paged_attn_ref
from baton.kernels.mla import (
    from_latent,
    mla_decode,
    mla_decode_native,
    mla_query,
    mla_ref,
)

PREFIXES = [300, 7, 0, 8, 1, 2100, 3]  # tokens before each row's new one
NEAR = 5e-6


def poison_first(pool: Tensor, tables: Tensor, rows: Tensor, lens: list[int], first_key: int):
    """Let the tokens before `first_key` of each row be NaN."""
    page_size = pool.shape[1]
    for row, kv_len in zip(rows.tolist(), lens, strict=True):
        for place in range(min(first_key, kv_len)):
            pool[tables[row, place // page_size], place % page_size] = torch.nan


@pytest.mark.parametrize("first_key", [1, 5])
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_begins_at_the_first_key(native, first_key, page_size, dtype):
    rng = seeded(page_size + first_key)
    batch = paged_batch([1] * len(PREFIXES), PREFIXES, 6, 2, page_size, rng)
    batch = dataclasses.replace(batch, k_pool=batch.k_pool.to(dtype), v_pool=batch.v_pool.to(dtype))
    for pool in (batch.k_pool, batch.v_pool):
        poison_first(pool, batch.block_tables, batch.table_rows, batch.kv_lens_host, first_key)
    expected = paged_attn_ref(**batch.prefill_arguments(), scale=0.3, first_key=first_key)
    arguments = batch.decode_arguments() | {"scale": 0.3, "first_key": first_key}
    empty = [kv_len <= first_key for kv_len in batch.kv_lens_host]
    assert any(empty) and not expected[empty].any() and not expected.isnan().any()
    assert_near(paged_attn_decode(**arguments), expected, NEAR)
    assert_near(paged_attn_decode_native(native, **arguments), expected, NEAR)


@pytest.mark.parametrize("first_key", [1, 5])
@pytest.mark.parametrize("page_size", [1, 16])
def test_latent_attention_begins_at_the_first_key(native, first_key, page_size):
    rng = seeded(page_size + first_key)
    batch = latent_batch([1] * len(PREFIXES), PREFIXES, 9, page_size, rng)
    poison_first(batch.pool, batch.block_tables, batch.table_rows, batch.kv_lens_host, first_key)
    expected = mla_ref(**vars(batch), scale=SCALE, first_key=first_key)
    query = mla_query(batch.q[..., :KEY], batch.q[..., KEY:], batch.up)[:, None]
    lens = torch.tensor(batch.kv_lens_host), batch.kv_lens_host
    place = batch.pool, batch.block_tables, batch.table_rows, *lens, RANK, SCALE
    means = (
        mla_decode(query, *place, first_key=first_key),
        mla_decode_native(native, query, *place, first_key=first_key),
    )
    empty = [kv_len <= first_key for kv_len in batch.kv_lens_host]
    assert any(empty) and not expected[empty].any() and not expected.isnan().any()
    for mean in means:
        assert_near(from_latent(mean[:, 0], batch.up, KEY), expected, 2 * NEAR)


def test_the_first_key_is_the_same_bits_alone_in_a_batch_and_on_every_number_of_threads(native):
    """Rows that threads divide by parts, and rows that are whole pieces of work."""
    rng = seeded(5)
    contexts = [0, 1, 255, 256, 4095] + [rng.randrange(900) for _ in range(5)]
    batch = paged_batch([1] * 10, contexts, 6, 3, 16, rng, 64)
    arguments = batch.decode_arguments() | {"scale": 0.2, "first_key": 1}
    q, table_rows, kv_lens = (arguments.pop(name) for name in ("q", "table_rows", "kv_lens"))

    def attended(rows: slice) -> Tensor:
        out = paged_attn_decode_native(
            native, q[rows], table_rows=table_rows[rows], kv_lens=kv_lens[rows], **arguments
        )
        return out.clone()

    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            results.append(attended(slice(0, 10)))
            results.append(torch.cat([attended(slice(row, row + 1)) for row in range(10)]))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(result, results[0]) for result in results[1:])
