"""Placement by turns."""

from typing import ClassVar

from baton.router.placement.policy import RolePolicy
from baton.router.placement.rotation import Rotation
from baton.router.placement.view import RoleView


class RoundRobin(RolePolicy):
    """A policy that gives every worker of a role the same number of requests."""

    name: ClassVar[str] = "round_robin"

    def __init__(self) -> None:
        self._rotation = Rotation()

    def order(self, workers: RoleView) -> list[int]:
        return self._rotation.next(workers, workers.candidates)
