"""Moving state as bytes on a GPU, one launch for all layers; see baton.kernels.state_copy."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_WORDS = 2048  # 64-bit words that one program moves


def copy_slots(pool_bytes: Tensor, src_slots: Tensor, dst_slots: Tensor) -> None:
    """As baton.kernels.state_copy.copy_slots, of slots none of which is both source and
    destination. Slot bytes are a multiple of 8."""
    pool = pool_bytes.view(torch.int64)
    _move(pool, pool, src_slots, dst_slots)


def slot_pack(pool_bytes: Tensor, slots: Tensor) -> Tensor:
    """As baton.kernels.state_copy.slot_pack. Slot bytes are a multiple of 8."""
    pool = pool_bytes.view(torch.int64)
    packed = pool.new_empty((slots.shape[0], pool.shape[1]))
    _move(pool, packed, slots, None)
    return packed.view(torch.uint8)


def slot_unpack(buffer: Tensor, pool_bytes: Tensor, slots: Tensor) -> None:
    """As baton.kernels.state_copy.slot_unpack. Slot bytes are a multiple of 8."""
    _move(buffer.view(torch.int64), pool_bytes.view(torch.int64), None, slots)


def _move(source: Tensor, target: Tensor, from_rows: Tensor | None, to_rows: Tensor | None) -> None:
    """Rows to rows; None: the n-th row is the n-th."""
    rows = to_rows if from_rows is None else from_rows
    words = source.shape[1]
    if rows is not None and rows.shape[0] and words:
        _move_rows[(triton.cdiv(words, _WORDS), rows.shape[0])](
            source, target, from_rows, to_rows, source.stride(0), target.stride(0), words,
            BLOCK=_WORDS, num_warps=8,
        )  # fmt: skip


@triton.jit
def _move_rows(
    source, target, from_rows, to_rows, from_stride, to_stride, words, BLOCK: tl.constexpr
):
    word = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.program_id(1).to(tl.int64)
    inside = word < words
    first, last = n, n
    if from_rows is not None:
        first = tl.load(from_rows + n)
    if to_rows is not None:
        last = tl.load(to_rows + n)
    value = tl.load(source + first * from_stride + word, mask=inside)
    tl.store(target + last * to_stride + word, value, mask=inside)


def kv_pack(pages_bytes: Tensor, page_ids: Tensor, first: int, count: int) -> Tensor:
    """As baton.kernels.state_copy.kv_pack. Bytes of a token are a multiple of 8."""
    pages = pages_bytes.view(torch.int64)
    _, planes, _, words = pages.shape
    run = pages.new_empty((planes, count, words))
    _move_tokens(pages, run, page_ids, first, PACK=True)
    return run.view(torch.uint8)


def kv_unpack(
    buffer: Tensor, pages_bytes: Tensor, page_ids: Tensor, first: int, count: int
) -> None:
    """As baton.kernels.state_copy.kv_unpack. Bytes of a token are a multiple of 8."""
    _move_tokens(pages_bytes.view(torch.int64), buffer.view(torch.int64), page_ids, first, False)


def _move_tokens(pages: Tensor, run: Tensor, page_ids: Tensor, first: int, PACK: bool) -> None:
    planes, count, words = run.shape
    _move_run[(count, triton.cdiv(words, _WORDS), planes)](
        pages, run, page_ids, first, pages.shape[2], pages.stride(0), pages.stride(1),
        pages.stride(2), words, count, PACK=PACK, BLOCK=min(_WORDS, triton.next_power_of_2(words)),
        num_warps=4,
    )  # fmt: skip


@triton.jit
def _move_run(
    pages, run, page_ids, first, page_size, page_stride, plane_stride, token_stride, words, count,
    PACK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One token of one plane."""
    token = tl.program_id(0)
    word = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    plane = tl.program_id(2).to(tl.int64)
    inside = word < words
    place = first + token
    page = tl.load(page_ids + place // page_size)
    place = (place % page_size).to(tl.int64)
    there = pages + page * page_stride + plane * plane_stride + place * token_stride + word
    here = run + (plane * count + token) * words + word
    if PACK:
        tl.store(here, tl.load(there, mask=inside), mask=inside)
    else:
        tl.store(there, tl.load(here, mask=inside), mask=inside)
