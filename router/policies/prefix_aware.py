"""Placement where least is left to compute."""

import math
from typing import ClassVar

from baton.router.placement.policy import Policy
from baton.router.placement.prefix_waits import PrefixWaits
from baton.router.placement.rotation import Rotation
from baton.router.placement.view import ClusterView, Placement, PlacementRequest, RoleView

AFFINITY = 0.25
"""The part of its capacity by which a rank may be fuller than the emptiest for the sake of the KV
that it has: that need not be sent."""
UNCACHED = 64
"""The queued tokens that one uncached token of the prompt is worth. A queue delays this prompt;
what is computed twice delays all that come later, and its copy evicts what others would use."""


class PrefixAware(Policy):
    """A policy that counts prompt tokens.

    A prompt goes to the prefill worker with the least to compute: of the prompt, of which each
    token counts `UNCACHED` times, and of what is queued there. A prefix for which prompts have
    waited as much in all as a copy would cost is copied: one of them goes where the queue is
    shortest. The answer goes to the rank with the deepest cached prefix that is not much fuller
    than the emptiest. Equals take turns.
    """

    name: ClassVar[str] = "prefix_aware"

    def __init__(self) -> None:
        self._rotation = Rotation()
        self._waits = PrefixWaits()

    def place(self, view: ClusterView, request: PlacementRequest) -> Placement:
        prefills = self._prefills(view.prefill, request.prefix, request.max_prefills)
        return Placement(
            tuple(view.prefill.worker_ids[row] for row in prefills),
            view.decode.worker_ids[self._rank(view.decode)],
        )

    def _prefills(self, workers: RoleView, prefix: int, most: int) -> list[int]:
        """Return the rows of the cheapest candidates, `most` at the most, the cheapest first.

        All would compute the same prompt, so what is cached counts like a shorter queue.
        """
        cost, holders = workers.of_candidates(workers.queued_tokens), workers.cached_tokens
        for row in holders:
            cost[row] -= UNCACHED * holders[row]
        if holders and self._copies(workers, prefix, cost.index(min(cost))):
            cost = workers.of_candidates(workers.queued_tokens)
        chosen = self._rotation.next(workers, lowest(cost))[:most]
        for row in chosen:
            cost[row] = math.inf
        while len(chosen) < min(most, len(workers.candidates)):  # few of many: no need to sort all
            chosen.append(cost.index(min(cost)))
            cost[chosen[-1]] = math.inf
        return chosen

    def _copies(self, workers: RoleView, prefix: int, cheapest: int) -> bool:
        """Return True if the prompt should leave the worker that has its prefix."""
        queued, cached = workers.queued_tokens, workers.cached_tokens
        queues = workers.of_candidates(queued)
        shortest = queues.index(min(queues))
        lacks = cached.get(cheapest, 0) - cached.get(shortest, 0)
        waits = queued[cheapest] - queued[shortest]
        return lacks > 0 and waits > 0 and self._waits.reached(prefix, waits, UNCACHED * lacks)

    def _rank(self, ranks: RoleView) -> int:
        fullness, cached = ranks.of_candidates(ranks.fullness), ranks.cached_tokens
        bound = min(fullness) + AFFINITY
        near = [row for row in cached if fullness[row] < bound]
        if near:
            deepest = max(cached[row] for row in near)
            kept = {row for row in near if cached[row] == deepest}
            fullness = [each if row in kept else math.inf for row, each in enumerate(fullness)]
        return self._rotation.next(ranks, lowest(fullness))[0]


def lowest(column: list[float]) -> list[int]:
    """Return the rows with the least value."""
    least = min(column)
    if column.count(least) == 1:
        return [column.index(least)]
    return [row for row, value in enumerate(column) if value == least]
