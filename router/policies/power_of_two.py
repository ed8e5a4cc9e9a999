"""Placement on the emptier of two workers that are drawn at random."""

import random
from collections.abc import Mapping, Sequence
from typing import ClassVar

from baton.core.role import Role
from baton.router.placement.policy import RolePolicy
from baton.router.placement.view import ClusterView, PlacementRequest, RoleView


class PowerOfTwo(RolePolicy):
    """A policy that draws two workers at random and prefers the one with the lower load per slot.

    It balances almost as well as `least_load`, without the herding that occurs when several
    routers act on the same old reports (Mitzenmacher 2001). The workers that were not drawn follow
    in random order.
    """

    name: ClassVar[str] = "power_of_two"

    def __init__(self, rng: random.Random | None = None) -> None:
        """rng: a generator of known state, for tests; None: one seeded by the system."""
        self._rng = rng or random.Random()

    def order(self, workers: RoleView) -> list[int]:
        drawn = self._rng.sample(workers.candidates, len(workers.candidates))
        return sorted(drawn[:2], key=workers.fullness.__getitem__) + drawn[2:]

    def costs(
        self, view: ClusterView, role: Role, request: PlacementRequest
    ) -> Mapping[str, Sequence[float]]:
        return {"fullness": view.of(role).fullness}

    def reason(self, view: ClusterView, role: Role, request: PlacementRequest, chosen: int) -> str:
        return "the emptier of two workers drawn at random"
