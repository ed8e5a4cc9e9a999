"""Placement where least is left to compute."""

from typing import ClassVar

from baton.router.placement.policy import Policy
from baton.router.placement.rotation import Rotation
from baton.router.placement.view import ClusterView, Placement, PlacementRequest, RoleView

AFFINITY = 0.25
"""The part of its capacity by which a rank may be fuller than the emptiest for the sake of the KV
that it has: that need not be sent."""


class PrefixAware(Policy):
    """A policy that counts prompt tokens.

    A prompt goes to the prefill worker that would be done with it first: with what is queued there,
    and with what of the prompt has no cached state there. Its answer goes to the rank with the
    deepest cached prefix that is not much fuller than the emptiest. Equals take turns.
    """

    name: ClassVar[str] = "prefix_aware"

    def __init__(self) -> None:
        self._rotation = Rotation()

    def place(self, view: ClusterView, request: PlacementRequest) -> Placement:
        prefills = self._prefills(view.prefill)[: request.max_prefills]
        return Placement(
            tuple(view.prefill.worker_ids[row] for row in prefills),
            view.decode.worker_ids[self._rank(view.decode)],
        )

    def _prefills(self, workers: RoleView) -> list[int]:
        """Return the rows of all candidates, the one that is done first before the others.

        All would compute the same prompt, so what is cached counts like a shorter queue.
        """
        queued, cached = workers.queued_tokens, workers.cached_tokens
        cost = {row: queued[row] - cached.get(row, 0) for row in workers.candidates}
        least = min(cost.values())
        first = self._rotation.next(workers, [row for row in cost if cost[row] == least])
        rest = sorted((row for row in cost if cost[row] != least), key=cost.__getitem__)
        return first + rest

    def _rank(self, ranks: RoleView) -> int:
        fullness = {row: ranks.fullness(row) for row in ranks.candidates}
        bound = min(fullness.values()) + AFFINITY
        cached = {row: ranks.cached_tokens.get(row, 0) for row in fullness if fullness[row] < bound}
        deepest = max(cached.values())
        kept = {row: fullness[row] for row in cached if cached[row] == deepest}
        least = min(kept.values())
        return self._rotation.next(ranks, [row for row in kept if kept[row] == least])[0]
