"""The part of a tensor of a checkpoint that one tensor-parallel rank reads."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class WeightPart:
    """Runs of places along one dimension, end to end; without any, the whole tensor."""

    dim: int = 0
    spans: tuple[range, ...] = ()

    def views(self, whole: Tensor) -> list[Tensor]:
        """Return the runs as views of the tensor."""
        if not self.spans:
            return [whole]
        return [whole.narrow(self.dim, span.start, len(span)) for span in self.spans]

    def of(self, whole: Tensor) -> Tensor:
        """Return the part: the tensor itself or a view of it, or a copy of several runs."""
        views = self.views(whole)
        return views[0] if len(views) == 1 else torch.cat(views, self.dim)


WHOLE = WeightPart()
