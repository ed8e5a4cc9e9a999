"""Guesses on the device by two proposers, each for its own rows."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from baton.engine.memory.request_tables import RequestTables
from baton.engine.speculation.proposer import DecodingStep, DeviceProposer


class EachRows:
    """Asks the model's own layer for the rows that are to have its guesses, and another proposer
    for the rest. The layer does not run where no row wants it.
    """

    def __init__(self, other: DeviceProposer, layer: DeviceProposer) -> None:
        self._other = other
        self._layer = layer

    def propose(
        self, tables: RequestTables, rows: Tensor, ends: Tensor, most: int, step: DecodingStep
    ) -> tuple[Tensor, Tensor]:
        """See `DeviceProposer`."""
        drafts, counts = self._other.propose(tables, rows, ends, most, step)
        if not step.most_layered:
            return drafts, counts
        mine = replace(step, wanted=torch.where(step.layered, step.wanted, 0))
        guessed, found = self._layer.propose(tables, rows, ends, step.most_layered, mine)
        guessed = F.pad(guessed, (0, most - step.most_layered))
        return (
            torch.where(step.layered[:, None], guessed, drafts),
            torch.where(step.layered, found, counts),
        )
