"""Moving state as bytes: slot copies inside a pool, and gather and scatter for the wire.

Pools are seen as uint8: a slot-major state pool as `[slots, slot_bytes]`, a page-major KV pool as
`[pages, planes, page_size, token_bytes]`, where a plane is the keys or the values of one layer (a
range of layers is a slice of the planes). Offsets are 64-bit throughout.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


def copy_slots(pool_bytes: Tensor, src_slots: Tensor, dst_slots: Tensor) -> None:
    """Copy whole slots, all layers in one operation; every source is read before any write.

    pool_bytes: [slots, slot_bytes] uint8
    src_slots, dst_slots: [n] int64
    """
    (pool,) = _words(pool_bytes)
    pool.index_copy_(0, dst_slots, pool[src_slots])


def clear_slots(pool_bytes: Tensor, slots: Tensor) -> None:
    """Zero whole slots: pool_bytes [slots, slot_bytes] uint8, slots [n] int64."""
    (pool,) = _words(pool_bytes)
    pool.index_fill_(0, slots, 0)


def slot_pack(pool_bytes: Tensor, slots: Tensor) -> Tensor:
    """Slots [n] int64 of a pool, contiguous: [n, slot_bytes] uint8."""
    (pool,) = _words(pool_bytes)
    return pool[slots].view(torch.uint8)


def slot_unpack(buffer: Tensor, pool_bytes: Tensor, slots: Tensor) -> None:
    """Write buffer [n, slot_bytes] uint8 into slots [n] int64 of the pool."""
    source, pool = _words(buffer, pool_bytes)
    pool.index_copy_(0, slots, source)


def kv_pack(pages_bytes: Tensor, page_ids: Tensor, first: int, count: int) -> Tensor:
    """A run of tokens out of its pages, contiguous and exact to the token.

    pages_bytes: [pages, planes, page_size, token_bytes] uint8, strided over pages and planes
    page_ids:    [n] int64, the pages that the run lies in, in order
    first:       place of the run's first token in the first page
    count:       tokens
    returns      [planes, count, token_bytes] uint8
    """
    planes, page_size, token_bytes = pages_bytes.shape[1:]
    _check_run(page_ids, first, count, page_size)
    buffer = torch.empty((planes, count, token_bytes), dtype=torch.uint8, device=pages_bytes.device)
    source, target = _words(pages_bytes, buffer)
    for piece in _pieces(first, count, page_size):
        part = source[:, :, piece.low : piece.high][page_ids[piece.pages]]
        piece.of(target).copy_(part.transpose(0, 1))
    return buffer


def kv_unpack(
    buffer: Tensor, pages_bytes: Tensor, page_ids: Tensor, first: int, count: int
) -> None:
    """Write a run of tokens into its pages; no other token of those pages is touched.

    buffer: [planes, count, token_bytes] uint8, contiguous; the rest as in kv_pack
    """
    page_size = pages_bytes.shape[2]
    _check_run(page_ids, first, count, page_size)
    source, target = _words(buffer, pages_bytes)
    for piece in _pieces(first, count, page_size):
        part = piece.of(source).transpose(0, 1)
        target[:, :, piece.low : piece.high].index_copy_(0, page_ids[piece.pages], part)


@dataclass(frozen=True)
class _Piece:
    """Part of a run that covers the same places, low to high, of each of its pages."""

    pages: slice  # into the run's page ids
    low: int
    high: int
    start: int  # of its first token in the run

    def of(self, buffer: Tensor) -> Tensor:
        """Its view [planes, pages, high - low, width] of a run's buffer."""
        pages, span = self.pages.stop - self.pages.start, self.high - self.low
        part = buffer[:, self.start : self.start + pages * span]
        return part.view(buffer.shape[0], pages, span, buffer.shape[2])


def _pieces(first: int, count: int, page_size: int) -> Iterator[_Piece]:
    """The run from place `first` of its first page: a partial page, whole ones, a partial page."""
    end = first + count
    page, done = 0, 0
    if first or end < page_size:
        high = min(end, page_size)
        yield _Piece(slice(0, 1), first, high, 0)
        page, done = 1, high - first
    whole = end // page_size
    if whole > page:
        yield _Piece(slice(page, whole), 0, page_size, done)
        page, done = whole, done + (whole - page) * page_size
    if done < count:
        yield _Piece(slice(page, page + 1), 0, count - done, done)


def _check_run(page_ids: Tensor, first: int, count: int, page_size: int) -> None:
    needed = -(-(first + count) // page_size)
    if count < 1 or not 0 <= first < page_size or page_ids.shape[0] != needed:
        raise ValueError(
            f"a run of {count} tokens from place {first} lies in {needed} pages of {page_size}; "
            f"got {page_ids.shape[0]} page ids (count must be at least 1, first inside the page)"
        )


def _words(*tensors: Tensor) -> list[Tensor]:
    """The same memory in the widest integers that divide all of it: bytes one by one take 10 x."""
    sizes = [
        size
        for tensor in tensors
        for size in (tensor.shape[-1], tensor.storage_offset(), *tensor.stride()[:-1])
    ]
    for dtype in (torch.int64, torch.int32, torch.int16):
        if all(size % dtype.itemsize == 0 for size in sizes):
            return [tensor.view(dtype) for tensor in tensors]
    return list(tensors)
