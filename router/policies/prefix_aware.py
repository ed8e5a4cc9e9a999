"""Placement where least is left to compute."""

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import ClassVar

from baton.core.role import Role
from baton.router.placement.policy import Policy
from baton.router.placement.rotation import Rotation
from baton.router.placement.view import ClusterView, Placement, PlacementRequest, RoleView

AFFINITY = 0.25
"""The part of its capacity by which a rank may be fuller than the emptiest for the sake of the KV
that it has: that need not be sent."""
UNCACHED = 64
"""The queued tokens that one uncached token of the prompt is worth. A queue delays this prompt;
what is computed twice delays all that come later, and its copy evicts what others would use."""
PAIRED = 4
"""The prefill workers of which a pair is chosen where links differ."""
EVEN = 1.25
"""Speeds that differ by less than this factor count as equal: they are measured as the workers
run, and turns among equals are worth more than such a difference."""
MOST_PREFIXES = 4096
"""Prefixes that are remembered: those for which prompts waited last."""


class PrefixAware(Policy):
    """A policy that counts prompt tokens, and the time that they take.

    A prompt goes to the prefill worker with the least to compute: of the prompt, of which each
    token counts `UNCACHED` times, and of what is queued there. Where workers differ in speed, it is
    the time that counts, in tokens of the mean speed. A prefix for which prompts have
    waited as much in all as a copy would cost is copied: one of them goes where the queue is
    shortest. The answer goes to the rank with the deepest cached prefix that is not much fuller
    than the emptiest. Equals take turns.

    Where links differ in bandwidth, the pair is chosen together, among the `PAIRED` cheapest
    prefill workers and the ranks that are not much fuller than the emptiest: the tokens that could
    be computed while the hand-off takes longer than over the best link count as queued ones do.
    """

    name: ClassVar[str] = "prefix_aware"

    def __init__(self) -> None:
        self._rotation = Rotation()
        self._waits = PrefixWaits()

    def place(self, view: ClusterView, request: PlacementRequest) -> Placement:
        cost, equals = self._costs(view.prefill, request)
        first = self._rotation.next(view.prefill, equals)
        token_us = 0.0 if view.links is None else mean_us(view.prefill)
        if not token_us:
            near = self._near(view.decode)
        else:
            first, near = self._pair(view, request, cost, first, token_us)
        prefills = cheapest(view.prefill, cost, first, request.max_prefills)
        return Placement(
            tuple([view.prefill.worker_ids[row] for row in prefills]),
            view.decode.worker_ids[self._rotation.next(view.decode, near)[0]],
        )

    def costs(
        self, view: ClusterView, role: Role, request: PlacementRequest
    ) -> Mapping[str, Sequence[float]]:
        """Return, of prefill workers, queued tokens and what cached ones take off."""
        if role is Role.DECODE:
            return {"fullness": view.decode.fullness}
        workers = view.prefill
        cached, rows = workers.cached_tokens, range(len(workers.worker_ids))
        return {
            "queue": waits(workers, request.prompt_tokens),
            "cached": [-UNCACHED * cached.get(row, 0) for row in rows],
        }

    def reason(self, view: ClusterView, role: Role, request: PlacementRequest, chosen: int) -> str:
        if role is Role.DECODE:
            return _rank_reason(view, chosen)
        parts = self.costs(view, role, request)
        queue = parts["queue"]
        total = [sum(each) for each in zip(*parts.values(), strict=True)]
        rows = view.prefill.candidates
        if total[chosen] <= min(total[row] for row in rows):
            return f"least to compute: queued tokens, less {UNCACHED} for each cached one"
        if view.links is not None and queue[chosen] > min(queue[row] for row in rows):
            return f"the link to the rank is faster than those of the {PAIRED} with less to compute"
        return "the shortest queue: so many prompts waited for this prefix that it is worth a copy"

    def _costs(self, workers: RoleView, request: PlacementRequest) -> tuple[list[float], list[int]]:
        """Return each candidate's cost, and infinity for the others; and the rows with the least.
        What is cached counts like a shorter queue.
        """
        holders = workers.cached_tokens
        cost = queues = workers.of_candidates(waits(workers, request.prompt_tokens))
        if holders:
            cost = [*queues]
            for row, tokens in holders.items():
                cost[row] -= UNCACHED * tokens
        equals = equal(cost, min(cost))
        if holders:
            shortest = min(queues)
            if self._copies(holders, queues, request.prefix, equals[0], queues.index(shortest)):
                return queues, equal(queues, shortest)
        return cost, equals

    def _pair(
        self, view: ClusterView, request: PlacementRequest, cost: list[float], equals: list[int],
        token_us: float,
    ) -> tuple[list[int], list[int]]:  # fmt: skip
        """Return the prefill worker, in a list, and the ranks that are the cheapest together.

        equals: the prefill workers with the least cost, in turn. token_us: the time of a prompt
        token.
        """
        workers, ranks = view.prefill, view.decode
        fullness = ranks.of_candidates(ranks.fullness)
        bound = min(fullness) + AFFINITY
        near = [row for row in ranks.candidates if fullness[row] < bound]
        least, worker, late = math.inf, equals[0], [0.0] * len(near)
        for row in cheapest(workers, cost, equals, PAIRED):
            seconds = view.lates_s(row, near, request)
            total = cost[row] + min(seconds) * 1e6 / token_us
            if total < least:
                least, worker, late = total, row, seconds
        soonest = min(late)
        reached = [row for row, each in zip(near, late, strict=True) if each == soonest]
        return [worker], self._near(ranks._replace(candidates=reached))

    def _copies(
        self, cached: Mapping[int, int], queues: Sequence[float], prefix: int, cheapest: int,
        shortest: int,
    ) -> bool:  # fmt: skip
        """Return True if the prompt should leave the worker that has its prefix, `cheapest`, for
        the one with the shortest queue.
        """
        lacks = cached.get(cheapest, 0) - cached.get(shortest, 0)
        longer = int(queues[cheapest] - queues[shortest])
        return lacks > 0 and longer > 0 and self._waits.reached(prefix, longer, UNCACHED * lacks)

    def _near(self, ranks: RoleView) -> list[int]:
        """Return the emptiest of the ranks with the deepest state, among those that are not much
        fuller than the emptiest; of these if none has a state.
        """
        fullness, cached = ranks.of_candidates(ranks.fullness), ranks.cached_tokens
        emptiest = min(fullness)
        near = [row for row in cached if fullness[row] < emptiest + AFFINITY]
        if not near:
            return equal(fullness, emptiest)
        deepest = max([cached[row] for row in near])
        near = sorted([row for row in near if cached[row] == deepest])
        least = min([fullness[row] for row in near])
        return [row for row in near if fullness[row] == least]


class PrefixWaits:
    """The queued tokens behind which prompts of each prefix have been put, although a queue
    elsewhere was shorter.

    Who copies a prefix as soon as the waits for it are worth the copy pays at most twice what one
    would pay who knows how many prompts of it will come.
    """

    def __init__(self, most: int = MOST_PREFIXES) -> None:
        self._most = most
        self._tokens: OrderedDict[int, int] = OrderedDict()

    def reached(self, prefix: int, tokens: int, bound: int) -> bool:
        """Add a wait behind `tokens` queued tokens, or begin anew and return True where `bound`
        would be exceeded.
        """
        waited = self._tokens.pop(prefix, 0) + tokens
        if waited > bound:
            return True
        self._tokens[prefix] = waited
        if len(self._tokens) > self._most:
            self._tokens.popitem(last=False)
        return False


def _rank_reason(view: ClusterView, chosen: int) -> str:
    links = "" if view.links is None else ", and that the prefill worker's link reaches soonest"
    if view.decode.cached_tokens.get(chosen):
        return f"the deepest state of ranks at most {AFFINITY:g} fuller than the emptiest{links}"
    return f"the emptiest rank: none that is not much fuller{links} has a state of the prompt"


def cheapest(
    workers: RoleView, cost: Sequence[float], equals: Sequence[int], most: int
) -> list[int]:
    """Return the rows of at most `most` candidates, the cheapest first.

    equals: the first of them, those with the least cost in turn.
    """
    chosen = [*equals[:most]]
    if len(chosen) == most:
        return chosen
    left = list(cost)
    for row in chosen:
        left[row] = math.inf
    while len(chosen) < min(most, len(workers.candidates)):  # few of many: no need to sort all
        chosen.append(left.index(min(left)))
        left[chosen[-1]] = math.inf
    return chosen


def waits(workers: RoleView, prompt_tokens: int) -> Sequence[float]:
    """Return the tokens that each worker computes before the end of a prompt that it has not
    cached, less the prompt's where all are equally fast.

    Where they are not, these are tokens of the mean speed: a worker of half that speed has twice as
    many. One that has measured nothing yet counts as the mean.
    """
    queued, speeds = workers.queued_tokens, workers.prompt_token_us
    most, least = max(speeds), min(speeds) or min(filter(None, speeds), default=0.0)
    if not most or most < EVEN * least:
        return queued
    mean = mean_us(workers)
    return [
        (tokens + prompt_tokens) * ((each or mean) / mean)
        for tokens, each in zip(queued, speeds, strict=True)
    ]


def mean_us(workers: RoleView) -> float:
    """Return the mean time of a prompt token of the workers that have measured it; 0: none has."""
    known = [each for each in workers.prompt_token_us if each]
    return sum(known) / len(known) if known else 0.0


def equal(column: list[float], least: float) -> list[int]:
    """Return the rows that have that value, of which there is one."""
    if column.count(least) == 1:
        return [column.index(least)]
    return [row for row, value in enumerate(column) if value == least]
