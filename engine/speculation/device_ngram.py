"""Guesses on the device from a request's own tokens: what followed the same last few before."""

import torch
from torch import Tensor

from baton.engine.memory.request_tables import RequestTables
from baton.engine.speculation.ngram import LONGEST, SHORTEST

SEARCHED = 4096
"""Tokens of a sequence, its newest ones, that are searched."""


class DeviceNgram:
    """Guesses the tokens that followed the newest n-gram where it occurred last, as `NgramProposer`
    does, among the newest `SEARCHED` tokens.
    """

    def propose(
        self, tables: RequestTables, rows: Tensor, ends: Tensor, most: int
    ) -> tuple[Tensor, Tensor]:
        """See `DeviceProposer`."""
        length = tables.tokens.shape[1]
        searched = min(SEARCHED, length)
        first = (ends - searched).clamp_(min=0)
        begun = rows * length + first  # where the searched tokens lie
        places = torch.arange(searched, device=ends.device)
        flat = tables.tokens.view(-1)
        text = flat[(begun[:, None] + places).clamp_(max=flat.shape[0] - 1)]
        newest = ends - first  # tokens of it that are the sequence's
        # same[:, p]: as many tokens before p as are the last ones, at most LONGEST.
        same = torch.zeros_like(text)
        alike = torch.ones_like(text, dtype=torch.bool)
        for back in range(1, LONGEST + 1):
            last = text.gather(1, (newest - back).clamp(min=0)[:, None])
            alike[:, :back] = False
            alike[:, back:] &= text[:, : searched - back] == last
            same += alike
        before = (places < newest[:, None]) & (same >= SHORTEST)
        rank = torch.where(before, same * searched + places, -1)
        best, at = rank.max(dim=1)
        # What repeats itself goes on repeating itself.
        period = (newest - at).clamp_(min=1)
        ahead = torch.arange(most, device=ends.device)
        source = (at[:, None] + ahead % period[:, None]).clamp_(max=searched - 1)
        found = best >= 0
        return text.gather(1, source).long(), torch.where(found, most, 0)
