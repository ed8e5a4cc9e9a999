"""Placement on the workers with the lowest load."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from baton.core.role import Role
from baton.router.placement.policy import RolePolicy
from baton.router.placement.rotation import Rotation
from baton.router.placement.view import ClusterView, PlacementRequest, RoleView


class LeastLoad(RolePolicy):
    """A policy that prefers the lowest load relative to capacity.

    Workers that are equally full take turns, so that an idle cluster is used evenly.
    """

    name: ClassVar[str] = "least_load"

    def __init__(self) -> None:
        self._rotation = Rotation()

    def order(self, workers: RoleView) -> list[int]:
        fullness, rows = workers.fullness, workers.candidates
        least = min(fullness[row] for row in rows)
        first = self._rotation.next(workers, [row for row in rows if fullness[row] == least])
        rest = sorted((row for row in rows if fullness[row] != least), key=fullness.__getitem__)
        return first + rest

    def costs(
        self, view: ClusterView, role: Role, request: PlacementRequest
    ) -> Mapping[str, Sequence[float]]:
        return {"fullness": view.of(role).fullness}

    def reason(self, view: ClusterView, role: Role, request: PlacementRequest, chosen: int) -> str:
        return "lowest load relative to its capacity; equals take turns"
