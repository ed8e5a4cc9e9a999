"""Sums and gathers over the ranks of a replica, through memory that they share: natively."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from baton.core.errors import InvariantError
from baton.kernels.native.recorder import Native

_LINE = 16  # int32 words of a cache line
MOST_RANKS = 63
HEADER_WORDS = _LINE * (MOST_RANKS + 1)
END_WORD = _LINE * MOST_RANKS
"""The word that ends all waits, where it is not zero."""
OTHER_SUM = 2
"""See `Meeting.state`."""


def shared_words(ranks: int, capacity: int) -> int:
    """Return the int32 words of memory that so many ranks share."""
    return HEADER_WORDS + 2 * ranks * capacity


@dataclass(frozen=True)
class Meeting:
    """One rank's view of the memory.

    shared: [shared_words] int32, zeros at first
    state:  [2] int64, of this rank alone, zeros at first: meetings, and how one has failed: 1, the
            others did not come; 2, they came for another sum
    capacity: float32 values of one rank in one meeting
    parent: the process whose end ends all waits, as this process's parent; 0: none
    limit_s: seconds that a rank waits for the others
    """

    shared: Tensor
    state: Tensor
    rank: int
    ranks: int
    capacity: int
    parent: int
    limit_s: float


def all_reduce_native(native: Native, x: Tensor, meeting: Meeting) -> None:
    """Replace `x` by the sum of all ranks', the same bits on each. x: contiguous float32"""
    native.call(
        "all_reduce",
        True,
        x=x,
        shared=meeting.shared,
        state=meeting.state,
        count=x.numel(),
        rank=meeting.rank,
        ranks=meeting.ranks,
        capacity=meeting.capacity,
        parent=meeting.parent,
        limit=meeting.limit_s,
    )


def gather_columns_native(
    native: Native, x: Tensor, on_device: Tensor, widths: Sequence[int], meeting: Meeting
) -> Tensor:
    """Return all ranks' columns side by side on rank 0, and `x` on others.

    x: [T, widths[rank]] contiguous float32 -> [T, sum of widths]
    on_device: [ranks] int64, the widths, which recordings read
    """
    if max(widths) > meeting.capacity:
        raise InvariantError(f"rows of {max(widths)} values, of which {meeting.capacity} have room")
    out = x if meeting.rank else native.empty(x.shape[0], sum(widths))
    native.call(
        "gather_columns",
        True,
        x=x,
        out=out,
        widths=on_device,
        shared=meeting.shared,
        state=meeting.state,
        rows=x.shape[0],
        rank=meeting.rank,
        ranks=meeting.ranks,
        capacity=meeting.capacity,
        parent=meeting.parent,
        limit=meeting.limit_s,
    )
    return out
