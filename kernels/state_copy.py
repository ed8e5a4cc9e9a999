"""Copies of state slots inside a pool, which is seen as bytes."""

import torch
from torch import Tensor


def copy_slots(pool_bytes: Tensor, src_slots: Tensor, dst_slots: Tensor) -> None:
    """Implement `Kernels.copy_slots` for slots of any size. Every source is read before any write,
    so a slot may be source and destination."""
    pool = _words(pool_bytes)
    pool.index_copy_(0, dst_slots, pool[src_slots])


def _words(pool: Tensor) -> Tensor:
    """View bytes as the widest integers that fit: a copy byte by byte takes ten times as long."""
    sizes = (pool.shape[1], pool.storage_offset(), pool.stride(0))
    for dtype in (torch.int64, torch.int32, torch.int16):
        if all(size % dtype.itemsize == 0 for size in sizes):
            return pool.view(dtype)
    return pool
