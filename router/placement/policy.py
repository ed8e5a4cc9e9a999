"""The interface of placement policies."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from baton.core.role import Role
from baton.router.placement.view import ClusterView, Placement, PlacementRequest, RoleView


class Policy(ABC):
    """A rule that chooses the workers of each request.

    A policy keeps no reference to a view. It may keep counters of its own, such as whose turn is
    next; a router has one instance and calls it from one thread.
    """

    name: ClassVar[str]
    """The value of `--policy`. Every concrete class in `router/policies/` sets it."""

    @abstractmethod
    def place(self, view: ClusterView, request: PlacementRequest) -> Placement:
        """Choose a decode worker and 1 to `request.max_prefills` prefill workers.

        Both roles of `view` have a candidate.
        """

    def costs(
        self, view: ClusterView, role: Role, request: PlacementRequest
    ) -> Mapping[str, Sequence[float]]:
        """Return what the policy adds up to compare the workers of a role, in columns by name.

        For `baton explain`, after the decision: of the columns, `fullness`, `queued_tokens` and
        `prompt_token_us` are what they were then. Empty: it compares nothing.
        """
        return {}

    def reason(self, view: ClusterView, role: Role, request: PlacementRequest, chosen: int) -> str:
        """Return why the worker of row `chosen` was taken. For `baton explain`, as `costs`."""
        return f"the choice of the policy {self.name}"


class RolePolicy(Policy):
    """A policy that orders the workers of each role without regard to the other role."""

    def place(self, view: ClusterView, request: PlacementRequest) -> Placement:
        """Take the best decode worker, and the best prefill workers in order."""
        decode = self.order(view.decode)[0]
        prefills = self.order(view.prefill)[: request.max_prefills]
        return Placement(
            tuple(view.prefill.worker_ids[row] for row in prefills), view.decode.worker_ids[decode]
        )

    @abstractmethod
    def order(self, workers: RoleView) -> list[int]:
        """Return the rows of all candidates, best first."""
