"""Attention over pages against a token-by-token float64 reference, on pools full of poison."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from ragged_batches import seeded
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton_device import BOUND, assert_near, here

from baton.kernels import scratch
from baton.kernels.attention import paged_attn_ref
from baton.kernels.norm import gated_rms_norm as torch_gated_rms_norm
from baton.kernels.norm import rms_norm as torch_rms_norm
from baton.kernels.rope import apply_rope as torch_apply_rope
from baton.kernels.rope import rope_cache
from baton.kernels.scratch import most_parts, parts_bytes, parts_of
from baton.kernels.triton import attention_decode
from baton.kernels.triton.attention_decode import paged_attn_decode
from baton.kernels.triton.attention_prefill import paged_attn_prefill
from baton.kernels.triton.kv_write import kv_write, latent_write
from baton.kernels.triton.norm import gated_norm, rms_norm
from baton.kernels.triton.rope import apply_rope


@dataclass(frozen=True)
class PagedBatch:
    """block_tables [B + 3, max pages + 2]; the pools are the middle of pages of 4 planes."""

    q: Tensor
    k_pool: Tensor
    v_pool: Tensor
    block_tables: Tensor
    table_rows: Tensor
    cu_seqlens_q: Tensor
    cu_seqlens_q_host: tuple[int, ...]
    kv_lens: Tensor
    kv_lens_host: tuple[int, ...]

    def decode_arguments(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if "seqlens" not in name}


def paged_batch(lengths, prefixes, heads, kv_heads, head_dim, page_size, dtype, rng) -> PagedBatch:
    """Rows on shuffled pages; whatever no row may see is NaN, page 0 too."""
    kv_lens = [p + n for p, n in zip(prefixes, lengths, strict=True)]
    needed = [-(-kv_len // page_size) for kv_len in kv_lens]
    free = rng.sample(range(1, sum(needed) + 4), sum(needed) + 3)
    pool = torch.full((sum(needed) + 4, 4, page_size, kv_heads, head_dim), torch.nan, dtype=dtype)
    tables = torch.zeros((len(lengths) + 3, max(needed) + 2), dtype=torch.int32)
    table_rows = rng.sample(range(len(tables)), len(lengths))
    for row, kv_len in enumerate(kv_lens):
        pages = torch.tensor([free.pop() for _ in range(needed[row])], dtype=torch.int64)
        tables[table_rows[row], : len(pages)] = pages
        positions = torch.arange(kv_len)
        filled = torch.randn(kv_len, 2, kv_heads, head_dim).to(dtype)
        pool[pages[positions // page_size], 1, positions % page_size] = filled[:, 0]
        pool[pages[positions // page_size], 2, positions % page_size] = filled[:, 1]
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + length)
    q = torch.randn(starts[-1], heads + 1, head_dim).to(dtype)[:, :heads]
    return PagedBatch(
        q, pool[:, 1], pool[:, 2], tables, torch.tensor(table_rows), torch.tensor(starts),
        tuple(starts), torch.tensor(kv_lens), tuple(kv_lens),
    )  # fmt: skip


@pytest.mark.parametrize("page_size", [4, 64])
@pytest.mark.parametrize(
    "heads, kv_heads, head_dim, dtype",
    [(6, 2, 20, torch.float32), (3, 1, 16, torch.bfloat16)],
)
def test_prompts_match_the_reference(heads, kv_heads, head_dim, dtype, page_size):
    """A page of 64 holds a whole tile of positions."""
    rng = seeded(heads)
    shape = (heads, kv_heads, head_dim, page_size)
    batch = paged_batch([5, 1, 9, 0, 40], [0, 8, 3, 4, 30], *shape, dtype, rng)
    out = paged_attn_prefill(**vars(here(batch)), scale=0.3)
    expected = paged_attn_ref(**vars(batch), scale=0.3)
    assert_near(out, expected, BOUND[dtype])


@pytest.mark.parametrize("page_size", [16, 64, 128])
@pytest.mark.parametrize(
    "heads, kv_heads, head_dim, dtype",
    [(6, 2, 20, torch.float32), (3, 3, 16, torch.bfloat16)],
)
def test_decode_matches_the_reference(heads, kv_heads, head_dim, dtype, page_size):
    """The second row has two parts; the last is padding. A page of 64 holds a whole tile."""
    rng = seeded(kv_heads)
    prefixes = [30, 270, 0]
    batch = paged_batch([1] * 3, prefixes, heads, kv_heads, head_dim, page_size, dtype, rng)
    padded = PagedBatch(
        torch.cat((batch.q, batch.q[:1])), batch.k_pool, batch.v_pool,
        batch.block_tables, torch.cat((batch.table_rows, torch.tensor([0]))),
        batch.cu_seqlens_q, batch.cu_seqlens_q_host,
        torch.cat((batch.kv_lens, torch.tensor([0]))), (),
    )  # fmt: skip
    out = paged_attn_decode(**here(padded).decode_arguments(), scale=0.3)
    expected = paged_attn_ref(**vars(batch), scale=0.3)
    assert_near(out[:3], expected, BOUND[dtype])
    assert not out[3].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("page_size", [16, 64])
def test_decode_begins_at_the_first_key(page_size, dtype):
    """Tokens before it are NaN; the last row has none from it on."""
    rng = seeded(page_size)
    batch = paged_batch([1] * 3, [30, 270, 0], 6, 2, 16, page_size, dtype, rng)
    for row in batch.table_rows:
        batch.k_pool[batch.block_tables[row, 0], 0] = torch.nan
        batch.v_pool[batch.block_tables[row, 0], 0] = torch.nan
    out = paged_attn_decode(**here(batch).decode_arguments(), scale=0.3, first_key=1)
    expected = paged_attn_ref(**vars(batch), scale=0.3, first_key=1)
    assert_near(out, expected, BOUND[dtype])
    assert not out[2].any()


def test_keys_and_values_go_to_the_named_places_alone():
    seeded(5)
    pool = torch.full((5, 2, 3, 2, 4), torch.nan)
    k, v = torch.randn(4, 2, 4), torch.randn(4, 5, 4)[:, 1:3]
    pages, offsets = torch.tensor([3, 3, 1, 0]), torch.tensor([1, 2, 0, 0])
    written = here(pool)
    arguments = here((pages, offsets))
    kv_write(here(k), here(v), written[:, 0], written[:, 1], *arguments)
    pool[pages, 0, offsets], pool[pages, 1, offsets] = k, v
    assert torch.equal(written.cpu().nan_to_num(7.0), pool.nan_to_num(7.0))
    latents = torch.full((5, 3, 7), torch.nan)
    written = here(latents)
    latent_write(here(torch.ones(4, 9))[:, 1:8], written, *arguments)
    latents[pages, offsets] = 1.0
    assert torch.equal(written.cpu().nan_to_num(7.0), latents.nan_to_num(7.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rotary", [12, 6])
def test_rotary_positions_match_torchs(rotary, dtype):
    seeded(rotary)
    x = torch.randn(7, 11, 12).to(dtype)[:, 1:10]
    cache, positions = rope_cache(torch.rand(rotary // 2), 50), torch.randint(50, (7,))
    out = apply_rope(here(x), here(cache), here(positions))
    assert_near(out, torch_apply_rope(x, cache, positions), BOUND[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_match_torchs(dtype):
    seeded(8)
    x, z = torch.randn(5, 66).to(dtype)[:, :60], torch.randn(5, 60).to(dtype)
    weight = torch.randn(60)
    out = rms_norm(here(x), here(weight), 1e-5)
    assert_near(out, torch_rms_norm(x, weight, 1e-5), BOUND[dtype])
    heads = x[:, :48].unflatten(1, (4, 12))
    out = rms_norm(here(heads), here(weight[:48].view(4, 12)), 1e-5)
    assert_near(out, torch_rms_norm(heads, weight[:48].view(4, 12), 1e-5), BOUND[dtype])
    for before in (False, True):
        out = gated_norm(here(x), here(z), here(weight), 1e-5, 20, before)
        expected = torch_gated_rms_norm(x, z, weight, 1e-5, 20, before)
        assert_near(out, expected, BOUND[dtype])


class Allocated(TorchDispatchMode):
    """Counts the bytes of the float32 tensors of at least four dimensions that are made."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if func.overloadpacket is torch.ops.aten.new_empty and made.dtype == torch.float32:
            self.nbytes += made.nbytes if made.ndim == 4 else 0
        return made


def test_parts_take_the_memory_that_is_planned_for_them():
    rng = seeded(11)
    shape = (4, 2, 16, 4)
    batch = paged_batch([1, 1, 1], [700, 30, 300], *shape, torch.bfloat16, rng)
    capacity = batch.block_tables.shape[1] * 4
    with Allocated() as allocated:
        paged_attn_decode(**here(batch).decode_arguments(), scale=0.3)
    assert allocated.nbytes == parts_bytes(3, 4, 16, capacity, most_parts(2))
    assert parts_of(capacity, most_parts(2)) == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_many_parts_of_one_kv_head_match_the_reference(dtype, monkeypatch):
    """Parts of 64 tokens: 37 of them, more than a row of eight KV heads may have, 16 and 1."""
    for module in (scratch, attention_decode):
        monkeypatch.setattr(module, "LEAST_PART", 64)
    rng = seeded(13)
    batch = paged_batch([1] * 3, [2339, 1023, 5], 3, 1, 16, 64, dtype, rng)
    assert parts_of(2340, most_parts(1)) == 37 and parts_of(2340, most_parts(8)) == 32
    out = paged_attn_decode(**here(batch).decode_arguments(), scale=0.3)
    expected = paged_attn_ref(**vars(batch), scale=0.3)
    assert_near(out, expected, BOUND[dtype])


def test_few_heads_or_many_processors_make_more_parts():
    by_groups = [most_parts(groups, 132) for groups in (1, 2, 4, 8, 64)]
    assert by_groups == [128, 128, 64, 32, 32]
    assert [most_parts(2, processors) for processors in (8, 58, 108, 1 << 20)] == [32, 32, 64, 128]
