"""Checkpoints with a layer of multi-token prediction, each made once a session, and what the layer
has left in an engine's or a driver's pools."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from oracle.mtp import MTP_SPECS, MtpReference, make_mtp_checkpoint
from step_driver import Row, StepDriver
from torch import Tensor

from baton.engine.layout.owners import Owner
from baton.engine.memory.page_pool import PagePool
from baton.engine.step.draft_batch import DraftBatch
from mtp.families import HERE

TRAINED = {name: HERE / name for name in ("qwen3_next", "nemotron_h", "deepseek_v3")}
"""The folders of the trained models of examples/mtp, by family."""


@dataclass(frozen=True)
class MtpCheckpoints:
    """The checkpoints of `oracle.mtp` under one folder."""

    root: Path

    def folder(self, name: str) -> Path:
        own, donor = self.root / name, self.root / f"{name}_donor"
        if not own.exists():
            make_mtp_checkpoint(MTP_SPECS[name], own, donor)
        return own

    def reference(self, name: str) -> MtpReference:
        return MtpReference(MTP_SPECS[name], self.folder(name), self.root / f"{name}_donor")


def entries_in(pages: PagePool, held: Sequence[int], count: int, first: int = 1) -> Tensor:
    """[count - first, values] float32: what the layer has written of tokens first to count - 1.

    held: the pages of the tokens, in order
    """
    size = pages.layout.page_size
    places = range(first, count)
    put = partial(torch.tensor, device=pages.storage.device)
    own, offsets = put([held[at // size] for at in places]), put([at % size for at in places])
    last = len(pages.layout.layers) - 1
    pools = [pages.latents[last]] if pages.latents else [pages.k[last], pages.v[last]]
    return torch.cat([pool[own, offsets].flatten(1) for pool in pools], dim=1).float()


def draft(
    driver: StepDriver, rows: Sequence[Row], tokens: Sequence[int], depth: int, before: Tensor
) -> tuple[Tensor, Tensor]:
    """Logits and hidden states of one depth of drafts, whose tokens lie `depth` behind the rows'
    computed ones."""
    places = [row.computed + depth for row in rows]
    for row, place in zip(rows, places, strict=True):
        while len(row.pages) * driver.page_size <= place:
            page = driver.pages.ids.take(Owner.LIVE)
            assert page is not None
            row.pages.append(page)
        driver.tables[row.slot, : len(row.pages)] = torch.tensor(
            row.pages, dtype=torch.int32, device=driver.device
        )
    size, put = driver.page_size, partial(torch.tensor, device=driver.device)
    pages = [row.pages[place // size] for row, place in zip(rows, places, strict=True)]
    batch = DraftBatch(
        token_ids=put(tokens),
        hidden=before,
        positions=put(places),
        token_pages=put(pages),
        token_offsets=put([place % size for place in places]),
        kv_lens=put(places) + 1,
        kv_lens_host=tuple(place + 1 for place in places),
        block_tables=driver.tables,
        table_rows=put([row.slot for row in rows]),
    )
    logits, after = driver.model.draft(batch, driver.states, driver.pages)
    return logits.clone(), after.clone()


def hidden_of(driver: StepDriver, rows: Sequence[Row]) -> Tensor:
    """[B, hidden]: the last hidden states in the rows' slots."""
    slots = torch.tensor([row.slot for row in rows], device=driver.device)
    return driver.model.hidden_before(driver.states, slots)
