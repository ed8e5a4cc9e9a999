"""Placement where least is left to compute."""

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

from baton.core.role import Role
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
EVEN = 1.25
"""Speeds that differ by less than this factor count as equal: they are measured as the workers
run, and turns among equals are worth more than such a difference."""


class PrefixAware(Policy):
    """A policy that counts prompt tokens, and the time that they take.

    A prompt goes to the prefill worker with the least to compute: of the prompt, of which each
    token counts `UNCACHED` times, and of what is queued there. Where workers differ in speed, it is
    the time that counts, in tokens of the mean speed. A prefix for which prompts have
    waited as much in all as a copy would cost is copied: one of them goes where the queue is
    shortest. The answer goes to the rank with the deepest cached prefix that is not much fuller
    than the emptiest. Equals take turns.
    """

    name: ClassVar[str] = "prefix_aware"

    def __init__(self) -> None:
        self._rotation = Rotation()
        self._waits = PrefixWaits()

    def place(self, view: ClusterView, request: PlacementRequest) -> Placement:
        prefills = self._prefills(view.prefill, request)
        return Placement(
            tuple([view.prefill.worker_ids[row] for row in prefills]),
            view.decode.worker_ids[self._rank(view.decode)],
        )

    def costs(self, workers: RoleView, request: PlacementRequest) -> Mapping[str, Sequence[float]]:
        """Return, of prefill workers, queued tokens and what cached ones take off."""
        if workers.role is Role.DECODE:
            return {"fullness": workers.fullness}
        cached, rows = workers.cached_tokens, range(len(workers.worker_ids))
        return {
            "queue": waits(workers, request.prompt_tokens),
            "cached": [-UNCACHED * cached.get(row, 0) for row in rows],
        }

    def reason(self, workers: RoleView, request: PlacementRequest, chosen: int) -> str:
        cached = workers.cached_tokens
        if workers.role is Role.DECODE:
            if cached.get(chosen):
                return f"the deepest state of ranks at most {AFFINITY:g} fuller than the emptiest"
            return "the emptiest rank: none that is not much fuller has a state of the prompt"
        costs = self.costs(workers, request).values()
        total = [sum(parts) for parts in zip(*costs, strict=True)]
        if total[chosen] <= min(total[row] for row in workers.candidates):
            return f"least to compute: queued tokens, less {UNCACHED} for each cached one"
        return "the shortest queue: so many prompts waited for this prefix that it is worth a copy"

    def _prefills(self, workers: RoleView, request: PlacementRequest) -> list[int]:
        """Return the rows of the cheapest candidates, `max_prefills` at the most, the cheapest
        first. What is cached counts like a shorter queue.
        """
        most, holders = request.max_prefills, workers.cached_tokens
        queues = workers.of_candidates(waits(workers, request.prompt_tokens))
        cost = list(queues)
        for row in holders:
            cost[row] -= UNCACHED * holders[row]
        if holders and self._copies(holders, queues, request.prefix, cost.index(min(cost))):
            cost = queues
        chosen = self._rotation.next(workers, lowest(cost))[:most]
        for row in chosen:
            cost[row] = math.inf
        while len(chosen) < min(most, len(workers.candidates)):  # few of many: no need to sort all
            chosen.append(cost.index(min(cost)))
            cost[chosen[-1]] = math.inf
        return chosen

    def _copies(
        self, cached: Mapping[int, int], queues: Sequence[float], prefix: int, cheapest: int
    ) -> bool:
        """Return True if the prompt should leave the worker that has its prefix."""
        shortest = queues.index(min(queues))
        lacks = cached.get(cheapest, 0) - cached.get(shortest, 0)
        longer = int(queues[cheapest] - queues[shortest])
        return lacks > 0 and longer > 0 and self._waits.reached(prefix, longer, UNCACHED * lacks)

    def _rank(self, ranks: RoleView) -> int:
        fullness, cached = ranks.of_candidates(ranks.fullness), ranks.cached_tokens
        bound = min(fullness) + AFFINITY
        near = [row for row in cached if fullness[row] < bound]
        if near:
            deepest = max(cached[row] for row in near)
            kept = {row for row in near if cached[row] == deepest}
            fullness = [each if row in kept else math.inf for row, each in enumerate(fullness)]
        return self._rotation.next(ranks, lowest(fullness))[0]


def waits(workers: RoleView, prompt_tokens: int) -> Sequence[float]:
    """Return the tokens that each worker computes before the end of a prompt that it has not
    cached, less the prompt's where all are equally fast.

    Where they are not, these are tokens of the mean speed: a worker of half that speed has twice as
    many. One that has measured nothing yet counts as the mean.
    """
    queued, speeds = workers.queued_tokens, workers.prompt_token_us
    known = [each for each in speeds if each]
    if not known or max(known) < EVEN * min(known):
        return queued
    mean = sum(known) / len(known)
    return [
        (tokens + prompt_tokens) * ((each or mean) / mean)
        for tokens, each in zip(queued, speeds, strict=True)
    ]


def lowest(column: list[float]) -> list[int]:
    """Return the rows with the least value."""
    least = min(column)
    if column.count(least) == 1:
        return [column.index(least)]
    return [row for row, value in enumerate(column) if value == least]
