"""The accepted tokens of a step that verified drafts, on their way to the other ranks."""

from dataclasses import dataclass

import torch

from baton.kernels.verify import Accepted


@dataclass(frozen=True)
class CommitMessage:
    """The commit of the step before, on every rank. B rows.

    numbers: the fields of `Accepted` but `has_initial`, end to end, [5, B] int64
    has_initial: [B] bool; None: all True
    met: see `StepMessage`
    """

    numbers: bytes
    has_initial: bytes | None
    met: int

    @classmethod
    def of(cls, accepted: Accepted, met: int) -> "CommitMessage":
        """Return the message of a commit."""
        rows = accepted._replace(has_initial=None)
        numbers = torch.stack([column for column in rows if column is not None])
        started = accepted.has_initial
        begun = None if started is None else started.numpy().tobytes()
        return cls(numbers.numpy().tobytes(), begun, met)

    def accepted(self) -> Accepted:
        """Return what `of` was given."""
        numbers = torch.frombuffer(bytearray(self.numbers), dtype=torch.int64).view(5, -1)
        read_slots, write_slots, counts, track_slots, track_counts = numbers
        started = None
        if self.has_initial is not None:
            started = torch.frombuffer(bytearray(self.has_initial), dtype=torch.bool)
        return Accepted(read_slots, write_slots, started, counts, track_slots, track_counts)
