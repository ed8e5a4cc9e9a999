"""Guesses by the model's own layer of multi-token prediction."""

from collections.abc import Iterator

import torch
from torch import Tensor

from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.request_tables import RequestTables
from baton.engine.memory.state_pool import StatePool
from baton.engine.speculation.proposer import DecodingStep
from baton.engine.step.draft_batch import DraftBatch
from baton.engine.step.model import Model


class MtpProposer:
    """Runs the MTP layer once a draft: behind the newest token, with the hidden state before it,
    which the step before has left in the row's slot; then behind each draft.

    A draft is drawn as the token is that it guesses: by the same filters, masks and noise, so that
    both are often one at any temperature.

    The entries that it writes lie where the step itself writes the entries of the same places; no
    other row has these pages. Rows without guesses write to the padding page.
    """

    def __init__(self, model: Model, states: StatePool, pages: PagePool) -> None:
        self._model = model
        self._states = states
        self._pages = pages

    def propose(
        self, tables: RequestTables, rows: Tensor, ends: Tensor, most: int, step: DecodingStep
    ) -> tuple[Tensor, Tensor]:
        """See `DeviceProposer`."""
        newest = ends - 1
        # The first token of a sequence has no hidden state before it.
        wanted = torch.where(newest > 0, step.wanted, 0)
        guessing = (wanted > torch.arange(most, device=rows.device)[:, None]).long()
        depths = _depths(self._pages.layout.page_size, tables, rows, newest, guessing)
        token_ids = tables.tokens_at(rows, newest.clamp(min=0)).long()
        hidden = self._model.hidden_before(self._states, step.read_slots)
        found = []
        for depth, (places, token_pages, offsets, kv_lens, table_rows) in enumerate(depths):
            batch = DraftBatch(
                token_ids=token_ids,
                hidden=hidden,
                positions=places,
                token_pages=token_pages,
                token_offsets=offsets,
                kv_lens=kv_lens,
                kv_lens_host=step.kv_lens_host,
                block_tables=tables.pages,
                table_rows=table_rows,
            )
            logits, hidden = self._model.draft(batch, self._states, self._pages)
            token_ids = step.draw(logits, depth) * guessing[depth]
            found.append(token_ids)
        return torch.stack(found, dim=1), wanted


def _depths(
    page_size: int, tables: RequestTables, rows: Tensor, newest: Tensor, guessing: Tensor
) -> Iterator[tuple[Tensor, ...]]:
    """Yield for each depth, [B] int64 each: the places of the tokens that it runs on, their pages
    and offsets, the rows' lengths and table rows; of padding rows 0 in all.

    rows: [B] int64, of the tables. newest: [B] int64, place of the newest token
    guessing: [depths, B] int64, 0 where a row is padding
    """
    depths = torch.arange(len(guessing), device=rows.device)[:, None]
    places = (newest + depths) * guessing
    table_rows = rows * guessing
    pages = tables.pages_at(table_rows.flatten(), (places // page_size).flatten())
    token_pages = pages.view_as(places) * guessing
    fields = places, token_pages, places % page_size, (places + 1) * guessing, table_rows
    return zip(*(field.unbind() for field in fields), strict=True)
