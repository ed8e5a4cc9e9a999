"""Guesses by the model's own layer of multi-token prediction."""

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
        page_size = self._pages.layout.page_size
        newest = ends - 1
        # The first token of a sequence has no hidden state before it.
        wanted = torch.where(newest > 0, step.wanted, 0)
        token_ids = tables.tokens_at(rows, newest.clamp(min=0)).long()
        hidden = self._model.hidden_before(self._states, step.read_slots)
        found = []
        for depth in range(most):
            guessing = wanted > depth
            places = torch.where(guessing, newest + depth, 0)
            table_rows = torch.where(guessing, rows, 0)
            pages = tables.pages_at(table_rows, places // page_size).long()
            batch = DraftBatch(
                token_ids=token_ids,
                hidden=hidden,
                positions=places,
                token_pages=torch.where(guessing, pages, 0),
                token_offsets=places % page_size,
                kv_lens=torch.where(guessing, places + 1, 0),
                kv_lens_host=step.kv_lens_host,
                block_tables=tables.pages,
                table_rows=table_rows,
            )
            logits, hidden = self._model.draft(batch, self._states, self._pages)
            token_ids = torch.where(guessing, step.draw(logits, depth), 0)
            found.append(token_ids)
        return torch.stack(found, dim=1), wanted
