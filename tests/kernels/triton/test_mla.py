"""Decode of latent attention on a GPU against torch's, which has a float64 reference of its own."""

import pytest
import torch
from ragged_batches import seeded
from triton_device import BOUND, assert_near, here

from baton.kernels.mla import mla_decode as torch_mla_decode
from baton.kernels.triton.mla import mla_decode

RANK, WIDTH, PAGE = 20, 28, 16


def latent_batch(kv_lens: list[int], dtype: torch.dtype, rng):
    """Latents on shuffled pages, and nothing but NaN elsewhere; block_tables [B, max pages]."""
    needed = [-(-kv_len // PAGE) for kv_len in kv_lens]
    free = rng.sample(range(1, sum(needed) + 3), sum(needed) + 2)
    pool = torch.full((sum(needed) + 3, 2, PAGE, WIDTH), torch.nan, dtype=dtype)[:, 1]
    tables = torch.zeros((len(kv_lens), max(needed) + 1), dtype=torch.int64)
    for row, kv_len in enumerate(kv_lens):
        pages = torch.tensor([free.pop() for _ in range(needed[row])], dtype=torch.int64)
        tables[row, : len(pages)] = pages
        positions = torch.arange(kv_len)
        filled = torch.randn(kv_len, WIDTH).to(dtype)
        pool[pages[positions // PAGE], positions % PAGE] = filled
    return pool, tables


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("queries", [1, 3])
def test_decode_matches_torchs_with_and_without_a_tree(queries, dtype):
    """The second row has two parts; the last is padding."""
    rng = seeded(queries)
    kv_lens = [queries + 4, 280, 0]
    pool, tables = latent_batch(kv_lens, dtype, rng)
    q = torch.randn(3, queries, 5, WIDTH).to(dtype)
    lens = torch.tensor(kv_lens)
    tree = torch.rand(3, queries, queries) < 0.5
    tree |= torch.eye(queries, dtype=torch.bool)
    for mask in (None, tree):
        arguments = (q, pool, tables, lens)
        out = mla_decode(*here(arguments), (), RANK, 0.2, here(mask))
        expected = torch_mla_decode(*(a.float() if a.is_floating_point() else a for a in arguments),
                                    kv_lens, RANK, 0.2, mask)  # fmt: skip
        assert_near(out[:2], expected[:2], BOUND[dtype])
        assert not out[2].any()
