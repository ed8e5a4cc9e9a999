"""Checkpoints with a layer of multi-token prediction, each made once a session, and what the layer
has left in an engine's or a driver's pools."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from oracle.mtp import MTP_SPECS, MtpReference, make_mtp_checkpoint
from torch import Tensor

from baton.engine.memory.page_pool import PagePool


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
    own = torch.tensor([held[place // size] for place in places])
    offsets = torch.tensor([place % size for place in places])
    last = len(pages.layout.layers) - 1
    pools = [pages.latents[last]] if pages.latents else [pages.k[last], pages.v[last]]
    return torch.cat([pool[own, offsets].flatten(1) for pool in pools], dim=1).float()
