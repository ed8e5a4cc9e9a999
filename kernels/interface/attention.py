"""Abstract kernels of attention over paged caches.

A pool is strided over pages, because one page holds every layer. Position p of a row lies in page
`block_tables[table_rows[row], p // page_size]` at offset `p % page_size`. Page 0 is padding:
kernels may read and write it, but its contents never reach the result of a real row. `_host` names
a host copy.

Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434) caches one row of W = rank + R values a
token, which all heads share: a normed latent of `rank` values, then the R rotated channels of the
key. `up` [H, N + V, rank] expands a latent to head h's key (its first N rows) and value (its last
V rows).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor


class AttentionKernels(ABC):
    """Kernels that write and read pages of keys and values, or pages of latents."""

    @abstractmethod
    def kv_write(
        self,
        k: Tensor,
        v: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        token_pages: Tensor,
        token_offsets: Tensor,
    ) -> None:
        """Store each token's key and value in its page.

        k, v:           [T, KH, D] float
        k_pool, v_pool: [pages, page_size, KH, D] float, strided over pages; written in place
        token_pages:    [T] int64, page of each token; 0 for padding tokens
        token_offsets:  [T] int64, place inside the page
        """

    @abstractmethod
    def latent_write(
        self, latents: Tensor, pool: Tensor, token_pages: Tensor, token_offsets: Tensor
    ) -> None:
        """Store each token's latent in its page.

        latents: [T, W] float
        pool:    [pages, page_size, W] float, strided over pages; written in place
        token_pages, token_offsets: as in kv_write
        """

    @abstractmethod
    def paged_attn_prefill(
        self,
        q: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        block_tables: Tensor,
        table_rows: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_q_host: Sequence[int],
        kv_lens: Tensor,
        kv_lens_host: Sequence[int],
        scale: float,
    ) -> Tensor:
        """Attend from each row's new tokens to all its tokens up to themselves.

        The keys and values of the new tokens are in the pools already.

        q:              [T, QH, D] float, packed rows, may be strided; QH is a multiple of KH
        k_pool, v_pool: [pages, page_size, KH, D] float, strided over pages
        block_tables:   [N, max_pages] int32, contiguous rows; pages of every request, each in a
                        row of its own. Past a request's pages it names any pages: what those hold
                        never reaches its result
        table_rows:     [B] int64 into N, the request of each row
        cu_seqlens_q:   [B + 1] int64, packed token where each row begins
        kv_lens:        [B] int64, tokens of each row, the new ones included
        scale:          factor on the scores
        returns         [T, QH, D], dtype of q
        """

    @abstractmethod
    def paged_attn_decode(
        self,
        q: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        block_tables: Tensor,
        table_rows: Tensor,
        kv_lens: Tensor,
        kv_lens_host: Sequence[int],
        scale: float,
        *,
        first_key: int = 0,
        nodes: Tensor | None = None,
    ) -> Tensor:
        """Attend from one new token a row to the row's tokens from `first_key` on.

        q:       [B, QH, D] float, may be strided over rows; QH is a multiple of KH
        kv_lens: [B] int64, tokens of each row, the new one included; 0 for padding rows. A row
                 without a token from `first_key` on has zeros as its result
        kv_lens_host: no less than those: the host may not know how far a row has got
        first_key: below 64. What the pools hold of earlier tokens never reaches a result
        nodes:   [B] int64, of rows that are nodes of a tree: the newest tokens of a row lie where
                 bits are set, bit i being i places behind the first of them, which is as many
                 tokens before the row's end as there are bits. None: they lie one after another.
                 Only where `trees`
        k_pool, v_pool, block_tables, table_rows, scale: as in paged_attn_prefill
        returns  [B, QH, D], dtype of q
        """

    @abstractmethod
    def mla_query(self, plain: Tensor, rotated: Tensor, up: Tensor) -> Tensor:
        """Project queries onto cached latents: up_k[h]^T plain, followed by the rotated channels.

        plain:   [T, H, N] float, may be strided
        rotated: [T, H, R], dtype of plain, may be strided
        up:      [H, N + V, rank] float
        returns  [T, H, W], dtype of plain
        """

    @abstractmethod
    def from_latent(self, mean: Tensor, up: Tensor, key_rows: int) -> Tensor:
        """Expand the mean latent of each head to its value: up_v[h] mean.

        mean:     [T, H, rank] float, may be strided (native: contiguous)
        up:       [H, N + V, rank] float
        key_rows: N
        returns   [T, H, V], dtype of mean
        """

    @abstractmethod
    def mla_decode(
        self,
        q: Tensor,
        pool: Tensor,
        block_tables: Tensor,
        table_rows: Tensor,
        kv_lens: Tensor,
        kv_lens_host: Sequence[int],
        rank: int,
        scale: float,
        *,
        first_key: int = 0,
        nodes: Tensor | None = None,
    ) -> Tensor:
        """Attend from each row's Q newest tokens to its tokens from `first_key` up to themselves.

        q:            [B, Q, H, W] float, from mla_query (native: Q = 1, contiguous)
        pool:         [pages, page_size, W] float, strided over pages
        block_tables, table_rows: as in paged_attn_prefill
        kv_lens:      [B] int64, tokens of each row, the new ones included; 0 for padding rows
        rank:         values of a latent
        scale:        factor on the scores
        first_key:    as in paged_attn_decode
        nodes:        as in paged_attn_decode, where Q is 1
        returns       [B, Q, H, rank], dtype of q: the mean latent of each head
        """

    @abstractmethod
    def mla_prefill(
        self,
        plain: Tensor,
        rotated: Tensor,
        pool: Tensor,
        up: Tensor,
        block_tables: Tensor,
        table_rows: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_q_host: Sequence[int],
        kv_lens: Tensor,
        kv_lens_host: Sequence[int],
        scale: float,
    ) -> Tensor:
        """Attend from each row's new tokens to all its tokens up to themselves.

        Keys and values are expanded from the latents, which takes fewer operations than mla_query
        does where queries are many.

        plain:        [T, H, N] float, packed rows, may be strided: the queries' part for up_k
        rotated:      [T, H, R], dtype of plain, may be strided: the queries' rotated part
        pool:         [pages, page_size, W] float, strided over pages
        up:           [H, N + V, rank] float; dtype of the pool for native kernels
        block_tables, table_rows, cu_seqlens_q, kv_lens, scale: as in paged_attn_prefill
        returns       [T, H, V], dtype of plain
        """
