"""Copies of state slots inside a pool on a GPU, one launch for all layers."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_WORDS = 2048  # 64-bit words that one program copies


def copy_slots(pool_bytes: Tensor, src_slots: Tensor, dst_slots: Tensor) -> None:
    """Implement `Kernels.copy_slots`."""
    pool = pool_bytes.view(torch.int64)
    words = pool.shape[1]
    if src_slots.shape[0] and words:
        _copy[(triton.cdiv(words, _WORDS), src_slots.shape[0])](
            pool, src_slots, dst_slots, pool.stride(0), words, BLOCK=_WORDS, num_warps=8
        )


@triton.jit
def _copy(pool, src_slots, dst_slots, stride, words, BLOCK: tl.constexpr):
    """Copy some words of one slot."""
    word = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.program_id(1)
    inside = word < words
    value = tl.load(pool + tl.load(src_slots + n) * stride + word, mask=inside)
    tl.store(pool + tl.load(dst_slots + n) * stride + word, value, mask=inside)
