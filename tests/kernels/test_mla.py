"""Latent attention against a token-by-token float64 reference, on pools full of poison."""

from dataclasses import dataclass
from random import Random

import pytest
import torch
from kernels.native_cases import PoisonedNative
from ragged_batches import seeded
from torch import Tensor

from baton.kernels import mla
from baton.kernels.mla import (
    apply_partial_rope,
    apply_partial_rope_native,
    from_latent,
    from_latent_native,
    latent_write,
    latent_write_native,
    mla_decode,
    mla_decode_native,
    mla_prefill,
    mla_prefill_native,
    mla_query,
    mla_query_native,
    mla_ref,
)
from baton.kernels.native.library import load
from baton.kernels.native.recorder import Native
from baton.kernels.rope import rope_cache

RANK, ROTATED, KEY, SCALE = 10, 4, 6, 0.3  # KEY: channels of a key that are not rotated


@dataclass(frozen=True)
class LatentBatch:
    q: Tensor
    pool: Tensor
    up: Tensor
    block_tables: Tensor
    table_rows: Tensor
    cu_seqlens_q_host: list[int]
    kv_lens_host: list[int]

    def reference(self) -> Tensor:
        return mla_ref(**vars(self), scale=SCALE)

    def prefill(self, native: Native | None = None) -> Tensor:
        """Run the prefill, on the native kernels if they are given."""
        cu_seqlens, kv_lens = torch.tensor(self.cu_seqlens_q_host), torch.tensor(self.kv_lens_host)
        lens = (cu_seqlens, self.cu_seqlens_q_host, kv_lens, self.kv_lens_host)
        q = self.q[..., :KEY], self.q[..., KEY:]
        arguments = (*q, self.pool, self.up, self.block_tables, self.table_rows, *lens, SCALE)
        if native is None:
            return mla_prefill(*arguments)
        return mla_prefill_native(native, *arguments)

    def decode(self, queries: int = 1) -> Tensor:
        """Its projections before and after; `queries` tokens in every row."""
        query = mla_query(self.q[..., :KEY], self.q[..., KEY:], self.up)
        lens = (torch.tensor(self.kv_lens_host), self.kv_lens_host)
        query = query.unflatten(0, (-1, queries))
        place = (self.pool, self.block_tables, self.table_rows, *lens)
        mean = mla_decode(query, *place, RANK, SCALE)
        return from_latent(mean.flatten(0, 1), self.up, KEY)

    def native(self, native: Native) -> Tensor:
        """Decode, on the native kernels."""
        query = mla_query_native(native, self.q[..., :KEY], self.q[..., KEY:], self.up)
        lens = (torch.tensor(self.kv_lens_host), self.kv_lens_host)
        place = (self.pool, self.block_tables, self.table_rows, *lens)
        mean = mla_decode_native(native, query[:, None], *place, RANK, SCALE)
        return from_latent_native(native, mean[:, 0], self.up, KEY)


@pytest.fixture(scope="module")
def native() -> Native:
    library = load()
    if library is None:
        pytest.skip("no C++ compiler")
    return PoisonedNative(library)


def latent_batch(
    lengths: list[int], prefixes: list[int], heads: int, page_size: int, rng: Random
) -> LatentBatch:
    """Rows on shuffled pages; whatever no row may see is NaN, page 0 too."""
    kv_lens = [p + n for p, n in zip(prefixes, lengths, strict=True)]
    needed = [-(-kv_len // page_size) for kv_len in kv_lens]
    num_pages = sum(needed) + 4
    free = rng.sample(range(1, num_pages), num_pages - 1)
    # Page-major: this layer's latents are the middle of each page.
    pool = torch.full((num_pages, 3, page_size, RANK + ROTATED), torch.nan)[:, 1]
    # Rows of the table lie in another order than those of the batch, and some are nobody's.
    block_tables = torch.zeros((len(lengths) + 3, max(needed) + 2), dtype=torch.int32)
    table_rows = rng.sample(range(len(block_tables)), len(lengths))
    for row, kv_len in enumerate(kv_lens):
        pages = torch.tensor([free.pop() for _ in range(needed[row])], dtype=torch.int64)
        block_tables[table_rows[row], : len(pages)] = pages
        positions = torch.arange(kv_len)
        latents = torch.randn(kv_len, RANK + ROTATED)
        latent_write(latents, pool, pages[positions // page_size], positions % page_size)
    cu_seqlens = [0]
    for length in lengths:
        cu_seqlens.append(cu_seqlens[-1] + length)
    q = torch.randn(cu_seqlens[-1], heads, KEY + ROTATED)
    up = torch.randn(heads, KEY + rng.choice([3, 10, 13]), RANK)
    return LatentBatch(q, pool, up, block_tables, torch.tensor(table_rows), cu_seqlens, kv_lens)


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize(
    "lengths, prefixes, page_size",
    [([1], [0], 16), ([5, 1, 9, 0, 17], [0, 8, 3, 4, 16], 4), ([6, 2], [1, 0], 1)],
)
def test_prefill_matches_the_reference(lengths, prefixes, page_size, heads, monkeypatch):
    batch = latent_batch(lengths, prefixes, heads, page_size, seeded(heads + page_size))
    expected = batch.reference()
    torch.testing.assert_close(batch.prefill().double(), expected, atol=1e-5, rtol=1e-5)
    monkeypatch.setattr(mla, "_EXPANDED", 1)  # a head at a time
    torch.testing.assert_close(batch.prefill().double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("prefixes, page_size", [([0], 16), ([30, 7, 0, 8, 3], 8), ([4, 0], 1)])
def test_decode_matches_the_reference(prefixes, page_size, heads):
    rng = seeded(heads + page_size)
    batch = latent_batch([1] * len(prefixes), prefixes, heads, page_size, rng)
    torch.testing.assert_close(batch.decode().double(), batch.reference(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("queries", [2, 5])
def test_several_tokens_a_row_see_those_before_them(queries):
    rng = seeded(queries)
    batch = latent_batch([queries] * 3, [0, 9, 16], 3, 4, rng)
    expected = batch.reference()
    torch.testing.assert_close(batch.decode(queries).double(), expected, atol=1e-5, rtol=1e-5)


def test_padding_rows_of_a_decode_batch_get_zeros_and_change_nothing():
    batch = latent_batch([1, 1], [9, 3], 3, 4, seeded(1))
    padded = LatentBatch(
        q=torch.cat((batch.q, torch.randn(2, *batch.q.shape[1:]))),
        pool=batch.pool,
        up=batch.up,
        block_tables=batch.block_tables,
        table_rows=torch.cat((batch.table_rows, torch.zeros(2, dtype=torch.int64))),
        cu_seqlens_q_host=[0, 1, 2, 3, 4],
        kv_lens_host=[*batch.kv_lens_host, 0, 0],
    ).decode()
    torch.testing.assert_close(padded[:2], batch.decode(), atol=1e-6, rtol=1e-6)
    assert torch.equal(padded[2:], torch.zeros_like(padded[2:]))


def test_bfloat16_pools_and_weights_serve_float32_queries():
    batch = latent_batch([1, 1], [9, 3], 3, 4, seeded(3))
    rounded = LatentBatch(
        **{**vars(batch), "pool": batch.pool.bfloat16(), "up": batch.up.bfloat16()}
    )
    for out in (rounded.decode(), rounded.prefill()):
        torch.testing.assert_close(out.double(), rounded.reference(), atol=1e-5, rtol=1e-5)


def test_a_write_touches_only_the_named_places():
    seeded(5)
    pool = torch.full((5, 2, 3, 4), torch.nan)[:, 1]
    pages, offsets = torch.tensor([3, 3, 1, 0]), torch.tensor([1, 2, 0, 0])
    latents = torch.randn(4, 4)
    latent_write(latents, pool, pages, offsets)
    assert torch.equal(pool[pages, offsets], latents)
    written = set(zip(pages.tolist(), offsets.tolist(), strict=True))
    for page in range(5):
        for offset in range(3):
            assert bool(pool[page, offset].isnan().all()) == ((page, offset) not in written)


PROMPTS = [  # blocks of 32 queries and of 64 positions, whole and not
    ([1], [0], 16),
    ([5, 1, 9, 0, 17], [0, 8, 3, 4, 16], 4),
    ([70, 33], [0, 60], 16),
    ([0, 0], [3, 0], 4),
]


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lengths, prefixes, page_size", PROMPTS)
def test_native_prefill_matches_the_reference(
    native, lengths, prefixes, page_size, dtype, heads, monkeypatch
):
    batch = latent_batch(lengths, prefixes, heads, page_size, seeded(heads + sum(lengths)))
    stored = {"pool": batch.pool.to(dtype), "up": batch.up.to(dtype)}
    batch = LatentBatch(**{**vars(batch), **stored})
    expected = batch.reference()
    torch.testing.assert_close(batch.prefill(native).double(), expected, atol=1e-5, rtol=1e-5)
    monkeypatch.setattr(mla, "_EXPANDED", 1)  # a head at a time
    torch.testing.assert_close(batch.prefill(native).double(), expected, atol=1e-5, rtol=1e-5)


def test_a_native_prompt_cut_anywhere_is_the_same_bits_on_any_number_of_threads(native):
    whole = latent_batch([90], [0], 3, 16, seeded(8))
    out = whole.prefill(native)
    cut = 37  # neither a page's end nor a block's
    for first, last in ((0, cut), (cut, 90)):
        part = {"cu_seqlens_q_host": [0, last - first], "kv_lens_host": [last]}
        piece = LatentBatch(**{**vars(whole), **part, "q": whole.q[first:last]})
        assert torch.equal(piece.prefill(native), out[first:last])
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert torch.equal(whole.prefill(native), out)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("heads", [1, 3, 19])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("prefixes, page_size", [([0], 16), ([30, 7, 0, 8, 3], 8), ([4, 0], 1)])
def test_native_decode_matches_the_reference(native, prefixes, page_size, heads, dtype):
    rng = seeded(heads + page_size)
    batch = latent_batch([1] * len(prefixes), prefixes, heads, page_size, rng)
    stored = {"pool": batch.pool.to(dtype), "up": batch.up.to(dtype)}
    batch = LatentBatch(**{**vars(batch), **stored})
    torch.testing.assert_close(
        batch.native(native).double(), batch.reference(), atol=1e-5, rtol=1e-5
    )


def test_native_decode_gives_padding_rows_zeros_and_no_rows_nothing(native):
    batch = latent_batch([1, 1], [9, 3], 3, 4, seeded(1))
    padding = {
        "q": torch.cat((batch.q, torch.randn(1, *batch.q.shape[1:]))),
        "table_rows": torch.cat((batch.table_rows, torch.zeros(1, dtype=torch.int64))),
        "kv_lens_host": [*batch.kv_lens_host, 0],
    }
    padded = LatentBatch(**{**vars(batch), **padding}).native(native)
    assert torch.equal(padded[:2], batch.native(native))
    assert torch.equal(padded[2], torch.zeros_like(padded[2]))
    nothing = {"q": batch.q[:0], "table_rows": batch.table_rows[:0], "kv_lens_host": []}
    assert LatentBatch(**{**vars(batch), **nothing}).native(native).shape[0] == 0


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("rows, heads, rotated", [(0, 2, 4), (5, 3, 2), (4, 1, 36)])
def test_tails_are_rotated_alike_natively(native, rows, heads, rotated, interleaved):
    seeded(rows)
    x = torch.randn(rows, heads, rotated + 9)[..., 2:]  # strided
    cache, positions = rope_cache(torch.rand(rotated // 2), 50), torch.randint(50, (rows,))
    wanted = apply_partial_rope(x, rotated, cache, positions, interleaved)
    got = apply_partial_rope_native(native, x, rotated, cache, positions, interleaved)
    torch.testing.assert_close(got, wanted, atol=1e-6, rtol=1e-6)
    # Pairs keep their length, wherever they end up.
    tail = x[..., -rotated:]
    pairs = tail.unflatten(-1, (-1, 2)) if interleaved else tail.unflatten(-1, (2, -1)).mT
    torch.testing.assert_close(got.unflatten(-1, (2, -1)).norm(dim=-2), pairs.norm(dim=-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_native_write_is_torch_s(native, dtype):
    seeded(5)
    ours, theirs = (torch.full((5, 2, 3, 21), torch.nan, dtype=dtype)[:, 1] for _ in range(2))
    latents = torch.randn(4, 30)[:, 4:25]
    places = (torch.tensor([3, 3, 1, 0]), torch.tensor([1, 2, 0, 0]))
    latent_write_native(native, latents, ours, *places)
    latent_write(latents, theirs, *places)
    torch.testing.assert_close(ours, theirs, atol=0, rtol=0, equal_nan=True)


def test_long_latent_contexts_are_the_same_bits_on_every_number_of_threads(native, rng):
    """Nine rows are whole pieces of work for one thread; two or five threads divide their parts."""
    contexts = [256, 257, rng.randrange(4100, 5000), *(rng.randrange(700) for _ in range(6))]
    batch = latent_batch([1] * 9, contexts, 19, 16, rng)
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            results.append(batch.native(native).clone())
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(results[0], batch.decode(), atol=2e-5, rtol=2e-5)
    assert all(torch.equal(result, results[0]) for result in results[1:])
