"""Placement at random."""

import random
from typing import ClassVar

from baton.router.placement.policy import RolePolicy
from baton.router.placement.view import RoleView


class RandomChoice(RolePolicy):
    """A policy that gives all orders the same probability."""

    name: ClassVar[str] = "random"

    def __init__(self, rng: random.Random | None = None) -> None:
        """rng: a generator of known state, for tests; None: one seeded by the system."""
        self._rng = rng or random.Random()

    def order(self, workers: RoleView) -> list[int]:
        return self._rng.sample(workers.candidates, len(workers.candidates))
