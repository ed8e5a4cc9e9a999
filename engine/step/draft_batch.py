"""The device tensors of one depth of drafts by multi-token prediction, and what it gives."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


@dataclass(frozen=True)
class DraftBatch:
    """One token a row, at the place behind which a draft is wanted. B rows; of trees several of
    one request.

    The MTP layer's entry at place i is made of token i and of the hidden state of token i - 1. A
    row without a predecessor, or without room, is padding: its kv_lens is 0 and its page is 0.
    """

    token_ids: Tensor  # [B] int64, the newest token of each row: at depth 1 its own, then drafts
    hidden: Tensor  # [B, hidden], of the token before: `Model.hidden_before`, then of a result
    positions: Tensor  # [B] int64, place of the token, 1 or more; of padding rows any
    token_pages: Tensor  # [B] int64, page of that place
    token_offsets: Tensor  # [B] int64, its offset in that page
    kv_lens: Tensor  # [B] int64, place + 1; 0 for padding rows
    kv_lens_host: tuple[int, ...]  # [B], no less than those; empty where none asks for it
    block_tables: Tensor  # [any, max pages] int32, as of ForwardBatch
    table_rows: Tensor  # [B] int64, into block_tables
    # Of trees: [B] int64, where the row's entries lie, see `Kernels.paged_attn_decode`; and the row
    # of the depth before that each goes on from, of which `hidden` is. None: rows stay themselves.
    nodes: Tensor | None = None
    parents: Tensor | None = None


class DraftResult(NamedTuple):
    """The result of one depth of drafts. B rows.

    logits: [B, vocab] float32, of the token behind each row's newest. hidden: [B, hidden], what
    the next depth goes on from.
    """

    logits: Tensor
    hidden: Tensor
