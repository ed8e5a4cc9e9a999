"""The accepted tokens of a step that verified drafts, on their way to the other ranks."""

from dataclasses import dataclass

import torch
from torch import Tensor

from baton.engine.collectives.comm import RankComm
from baton.kernels.verify import Accepted


@dataclass(frozen=True)
class CommitMessage:
    """The commit of the step before, on every rank. B rows.

    rows: B
    started: all rows have an initial state
    numbers: the fields of `Accepted`, [6, B] int64; None: they are broadcast among the devices next
    met: see `StepMessage`
    """

    rows: int
    started: bool
    numbers: bytes | None
    met: int

    @classmethod
    def of(cls, accepted: Accepted, met: int, *, on_device: bool) -> "CommitMessage":
        """Return the message of a commit. on_device: see `StepWriter`"""
        numbers = None if on_device else packed(accepted).numpy().tobytes()
        return cls(accepted.counts.shape[0], accepted.has_initial is None, numbers, met)

    def accepted(self, comm: RankComm, device: torch.device) -> Accepted:
        """Return what `of` was given, on this rank."""
        if self.numbers is None:
            numbers = torch.empty((6, self.rows), dtype=torch.int64, device=device)
            comm.broadcast(numbers)
        else:
            numbers = torch.frombuffer(bytearray(self.numbers), dtype=torch.int64).view(6, -1)
        read_slots, write_slots, begun, counts, track_slots, track_counts = numbers
        has_initial = None if self.started else begun.bool()
        return Accepted(read_slots, write_slots, has_initial, counts, track_slots, track_counts)


@dataclass(frozen=True)
class PathMessage:
    """The paths of the trees of the step before, which the ranks keep next: see `keep_path`.

    numbers: [B, Q] int64. rows: B
    """

    numbers: bytes
    rows: int

    @classmethod
    def of(cls, path: Tensor) -> "PathMessage":
        """Return the message of paths on the host: trees are verified on CPUs alone."""
        return cls(path.contiguous().numpy().tobytes(), path.shape[0])

    @property
    def path(self) -> Tensor:
        """The paths that `of` was given."""
        return torch.frombuffer(bytearray(self.numbers), dtype=torch.int64).view(self.rows, -1)


def packed(accepted: Accepted) -> Tensor:
    """Return the fields as [6, B] int64."""
    begun = accepted.has_initial
    if begun is None:
        begun = torch.ones_like(accepted.counts)
    fields = accepted._replace(has_initial=begun)
    return torch.stack([each.long() for each in fields if each is not None])
