"""The GPUs that workers ask of one machine."""

import math
from dataclasses import dataclass

_STEPS = 10_000
"""Parts of a resource that Ray tells apart."""


@dataclass(frozen=True)
class GpuDemand:
    """The demand of workers for a machine's GPUs.

    ranks: of each worker; none where they may run on other machines. each: the GPUs of a worker, a
    whole number or a part of 1; None: one for each of its ranks, or a part where those are too few.
    """

    ranks: tuple[int, ...] = ()
    each: float | None = None

    @property
    def needed(self) -> int:
        """Return the GPUs that they need. No worker has parts of two."""
        if self.each is None:
            return sum(self.ranks)
        if self.each >= 1:
            return int(self.each) * len(self.ranks)
        return math.ceil(len(self.ranks) / self.sharers)

    @property
    def sharers(self) -> int:
        """Return the most workers that share a GPU, of those that are known."""
        if self.each is None or self.each >= 1:
            return 1
        parts = int((1 + 1 / _STEPS) / self.each)
        return min(parts, len(self.ranks) or parts)

    @property
    def divisible(self) -> bool:
        """Return True where a worker may have a part of a GPU: ranks have one each."""
        return all(ranks == 1 for ranks in self.ranks)

    def on(self, count: int) -> "GpuDemand":
        """Return what they ask of `count` GPUs: equal parts, where nobody named what each asks for
        and there are too few for one each.
        """
        if self.each is not None or not self.divisible or not 0 < count < len(self.ranks):
            return self
        return GpuDemand(self.ranks, self.parts(count))

    def parts(self, count: int) -> float:
        """Return the part of one of `count` GPUs that each worker can have, in steps of Ray's."""
        sharers = math.ceil(len(self.ranks) / count)
        return _STEPS // sharers / _STEPS
