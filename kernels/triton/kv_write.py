"""Writing keys, values and latents to their pages on a GPU; see baton.kernels.attention."""

import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.triton.kernel import kernel
from baton.kernels.triton.shapes import packed

_BLOCK = 1024  # values of one program


def kv_write(
    k: Tensor, v: Tensor, k_pool: Tensor, v_pool: Tensor, token_pages: Tensor, token_offsets: Tensor
) -> None:
    """Implement `Kernels.kv_write`, for k and v strided over tokens."""
    width = k.shape[1] * k.shape[2]
    if k.shape[0]:
        _write[(k.shape[0], triton.cdiv(width, _BLOCK))](
            packed(k), packed(v), packed(k_pool), packed(v_pool), token_pages, token_offsets,
            k.stride(0), v.stride(0), k_pool.stride(0), v_pool.stride(0), width,
            BLOCK=_BLOCK, num_warps=4,
        )  # fmt: skip


def latent_write(latents: Tensor, pool: Tensor, token_pages: Tensor, token_offsets: Tensor) -> None:
    """Implement `Kernels.latent_write`, for latents strided over tokens."""
    width = latents.shape[1]
    if latents.shape[0]:
        _write[(latents.shape[0], triton.cdiv(width, _BLOCK))](
            packed(latents), None, packed(pool), None, token_pages, token_offsets,
            latents.stride(0), 0, pool.stride(0), 0, width, BLOCK=_BLOCK, num_warps=4,
        )  # fmt: skip


@kernel
def _write(
    k, v, k_pool, v_pool, pages, offsets, k_stride, v_stride, k_page, v_page, width,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Write part of one token."""
    token = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = c < width
    page, place = tl.load(pages + token), tl.load(offsets + token) * width + c
    value = tl.load(k + token * k_stride + c, mask=inside)
    tl.store(k_pool + page * k_page + place, value, mask=inside)
    if v is not None:
        value = tl.load(v + token * v_stride + c, mask=inside)
        tl.store(v_pool + page * v_page + place, value, mask=inside)
