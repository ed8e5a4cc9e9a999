"""Placement where least is left to compute."""

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
        queued, cached = workers.queued_tokens, workers.cached_tokens
        cost = {row: queued[row] for row in workers.candidates}
        for row in cached.keys() & cost.keys():
            cost[row] -= UNCACHED * cached[row]
        if self._copies(workers, prefix, min(cost, key=cost.__getitem__)):
            cost = {row: queued[row] for row in workers.candidates}
        least = min(cost.values())
        first = self._rotation.next(workers, [row for row in cost if cost[row] == least])[:most]
        rest = [row for row in cost if cost[row] != least]
        while rest and len(first) < most:  # few are wanted of many: sorting all costs more
            first.append(min(rest, key=cost.__getitem__))
            rest.remove(first[-1])
        return first

    def _copies(self, workers: RoleView, prefix: int, cheapest: int) -> bool:
        """Return True if the prompt should leave the worker that has its prefix."""
        queued, cached = workers.queued_tokens, workers.cached_tokens
        shortest = min(workers.candidates, key=queued.__getitem__)
        lacks = cached.get(cheapest, 0) - cached.get(shortest, 0)
        waits = queued[cheapest] - queued[shortest]
        return lacks > 0 and waits > 0 and self._waits.reached(prefix, waits, UNCACHED * lacks)

    def _rank(self, ranks: RoleView) -> int:
        reported, placed, capacity = ranks.reported, ranks.placed, ranks.capacity
        fullness = {
            row: (reported[row] if reported[row] > placed[row] else placed[row]) / capacity[row]
            for row in ranks.candidates
        }
        bound = min(fullness.values()) + AFFINITY
        cached = {row: ranks.cached_tokens.get(row, 0) for row in fullness if fullness[row] < bound}
        deepest = max(cached.values())
        kept = {row: fullness[row] for row in cached if cached[row] == deepest}
        least = min(kept.values())
        return self._rotation.next(ranks, [row for row in kept if kept[row] == least])[0]
