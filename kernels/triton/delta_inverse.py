"""Inverses of the triangular systems of the gated delta rule on a GPU, one a chunk and head."""

import triton
import triton.language as tl

from baton.kernels.triton.arithmetic import dot, narrow
from baton.kernels.triton.kernel import kernel

# Rows of a triangular system that are solved one after another: four blocks of them are a chunk.
SOLVED = tl.constexpr(16)


@triton.jit
def _block_of(scores, rates, row, column, left, heads, CHUNK: tl.constexpr):
    """Load block [SOLVED, SOLVED] of the system, wholly below its diagonal: row and column count
    blocks."""
    i = row * SOLVED + tl.arange(0, SOLVED)
    j = column * SOLVED + tl.arange(0, SOLVED)
    seen = (i < left)[:, None]
    own = tl.load(scores + i[:, None] * CHUNK + j[None, :], mask=seen, other=0.0)
    return own * tl.load(rates + i * heads, mask=i < left, other=0.0)[:, None]


@triton.jit
def _one_block(blocks, which):
    """Return block [SOLVED, SOLVED] of [4, SOLVED, SOLVED]."""
    return tl.sum(tl.where((tl.arange(0, 4) == which)[:, None, None], blocks, 0.0), axis=0)


@triton.jit
def _keep_block(inverse, block, rates, row, column, left, heads, CHUNK: tl.constexpr):
    """Store a block, its columns times the rates."""
    i = row * SOLVED + tl.arange(0, SOLVED)
    j = column * SOLVED + tl.arange(0, SOLVED)
    scaled = block * tl.load(rates + j * heads, mask=j < left, other=0.0)[None, :]
    scaled = narrow(scaled, inverse.dtype.element_ty)
    tl.store(inverse + i[:, None] * CHUNK + j[None, :], scaled)


@kernel
def invert(scores, rates, inverses, starts, heads, CHUNK: tl.constexpr):
    """Compute (I + L)^-1 diag(rates) of one chunk of one head, L its scores of keys below the
    diagonal.

    The four blocks D on the diagonal row by row, all at once; those below by block substitution.
    """
    tl.static_assert(CHUNK == 4 * SOLVED)
    head = tl.program_id(0)
    chunk = tl.program_id(1).to(tl.int64)
    start = tl.load(starts + chunk)
    left = tl.load(starts + chunk + 1) - start
    at = (chunk * heads + head) * CHUNK * CHUNK
    scores += at
    inverse = inverses + at
    rates += start * heads + head
    b, r = tl.arange(0, 4), tl.arange(0, SOLVED)
    i = (b[:, None] * SOLVED + r[None, :])[:, :, None]
    j = (b[:, None] * SOLVED + r[None, :])[:, None, :]
    diagonal = tl.load(scores + i * CHUNK + j, mask=(i > j) & (i < left), other=0.0)
    diagonal *= tl.load(rates + i * heads, mask=i < left, other=0.0)
    solved = tl.where((r[:, None] == r[None, :])[None, :, :], 1.0, tl.zeros_like(diagonal))
    for row in range(1, SOLVED):
        here = (r == row)[None, :, None]
        weights = tl.sum(tl.where(here, diagonal, 0.0), axis=1)
        known = tl.sum(weights[:, :, None] * solved, axis=1)
        solved = tl.where(here, solved - known[:, None, :], solved)
    d0, d1 = _one_block(solved, 0), _one_block(solved, 1)
    d2, d3 = _one_block(solved, 2), _one_block(solved, 3)
    a10 = _block_of(scores, rates, 1, 0, left, heads, CHUNK)
    a20 = _block_of(scores, rates, 2, 0, left, heads, CHUNK)
    a21 = _block_of(scores, rates, 2, 1, left, heads, CHUNK)
    a30 = _block_of(scores, rates, 3, 0, left, heads, CHUNK)
    a31 = _block_of(scores, rates, 3, 1, left, heads, CHUNK)
    a32 = _block_of(scores, rates, 3, 2, left, heads, CHUNK)
    x10 = -dot(d1, dot(a10, d0))
    x21 = -dot(d2, dot(a21, d1))
    x32 = -dot(d3, dot(a32, d2))
    x20 = -dot(d2, dot(a20, d0) + dot(a21, x10))
    x31 = -dot(d3, dot(a31, d1) + dot(a32, x21))
    x30 = -dot(d3, dot(a30, d0) + dot(a31, x10) + dot(a32, x20))
    _keep_block(inverse, d0, rates, 0, 0, left, heads, CHUNK)
    _keep_block(inverse, d1, rates, 1, 1, left, heads, CHUNK)
    _keep_block(inverse, d2, rates, 2, 2, left, heads, CHUNK)
    _keep_block(inverse, d3, rates, 3, 3, left, heads, CHUNK)
    _keep_block(inverse, x10, rates, 1, 0, left, heads, CHUNK)
    _keep_block(inverse, x20, rates, 2, 0, left, heads, CHUNK)
    _keep_block(inverse, x21, rates, 2, 1, left, heads, CHUNK)
    _keep_block(inverse, x30, rates, 3, 0, left, heads, CHUNK)
    _keep_block(inverse, x31, rates, 3, 1, left, heads, CHUNK)
    _keep_block(inverse, x32, rates, 3, 2, left, heads, CHUNK)
