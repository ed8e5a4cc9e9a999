"""The places of the workers, as `Recalls` looks at them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Places:
    """The load and the free places of the workers that stay. Made by the `Placer`."""

    ranks: Mapping[str, int]  # free places by worker id; below 0: requests that wait there
    idle_prefills: Sequence[str]  # worker ids
    idle_ranks: Mapping[str, int]  # the longest prompt that each would compute now; few of them
