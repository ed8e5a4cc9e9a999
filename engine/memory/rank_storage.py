"""The pools of all ranks of a replica, as its leader maps them."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from baton.engine.layout.layout import PageLayout, SlotLayout


class RankStorage(NamedTuple):
    """One rank's pools: [slots, slot bytes] and [pages, page bytes] uint8, as its part of the
    layouts has them."""

    states: Tensor
    pages: Tensor


@dataclass(frozen=True)
class RankStorages:
    """The pools of all ranks, by rank. slots, pages: the layouts of the undivided model."""

    slots: SlotLayout
    pages: PageLayout
    ranks: tuple[RankStorage, ...]
