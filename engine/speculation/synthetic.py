"""Acceptance that is drawn, not verified: for benchmarks of what a mean length would give."""

import torch
from torch import Tensor

from baton.engine.settings.config import EngineConfig

_HALVINGS = 60


class SyntheticAcceptance:
    """Draws how many drafts of a row are accepted: each with the same probability if those before
    it are. The drafts become the answer, which is then not the model's.
    """

    def __init__(self, length: float, drafts: int, device: torch.device) -> None:
        """length: tokens that a row with `drafts` drafts gives its answer, on average: 1 to
        drafts + 1."""
        self._chance = chance_of(length, drafts)
        self._random = torch.Generator(device).manual_seed(0)

    def draw(self, real: Tensor) -> Tensor:
        """Return which drafts are accepted, the first ones of each row: bool, as `real`.

        real: [B, any] bool, where a row has a draft
        """
        drawn = torch.rand(real.shape, generator=self._random, device=real.device)
        return ((drawn < self._chance) & real).cumprod(dim=1).bool()


def synthetic_acceptance(config: EngineConfig, device: torch.device) -> SyntheticAcceptance | None:
    """Return what draws the acceptance of drafts; None: they are verified, or there are none."""
    length = config.speculative_synthetic_acceptance
    if length is None or config.window == 1:
        return None
    return SyntheticAcceptance(length, config.draft_tokens - 1, device)


def chance_of(length: float, drafts: int) -> float:
    """Return the probability of a draft that gives rows the mean length."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        mean = 1.0 + sum(middle**depth for depth in range(1, drafts + 1))
        low, high = (middle, high) if mean < length else (low, middle)
    return high
