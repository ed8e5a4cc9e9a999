"""The input and the output of a placement policy.

A view shows columns that are kept up to date in place (`Columns`). A policy reads it and never
changes it. These are named tuples, which are made in a third of a dataclass's time: several are
made for each request.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from baton.core.role import Role
from baton.router.placement.links import Links


class RoleView(NamedTuple):
    """The registered workers of one role in columns: row i is the same worker in each of them.

    Rows are ordered by worker id, `d2` before `d10`. A policy may only choose rows of
    `candidates`; the others are there because a worker that takes no request can still hold state.
    """

    role: Role
    worker_ids: Sequence[str]
    reported: Sequence[int]  # requests on the worker at its last report, of all routers
    placed: Sequence[int]  # requests of this router on the worker now
    capacity: Sequence[int]  # requests that the worker runs at once, at least 1
    # The larger of `reported` and `placed`, because a report is old by up to a heartbeat, divided
    # by `capacity`; more than 1 where requests queue. If that is more, the share of the worker's
    # slots or pages that requests hold.
    fullness: Sequence[float]
    # Prompt tokens to compute on the worker before it computes another prompt, cached ones among
    # those that other routers sent.
    queued_tokens: Sequence[int]
    # Microseconds that each prompt token takes there, as the worker measures them; 0: not yet.
    prompt_token_us: Sequence[float]
    leaving: Sequence[bool]  # the worker finishes what it has and takes nothing new
    cached_tokens: Mapping[int, int]  # row to prompt tokens whose state it holds; no entry: none
    candidates: Sequence[int]  # rows that can take this request, ascending; never empty

    def of_candidates(self, column: Sequence[float]) -> list[float]:
        """Return a copy of a column with infinity in the rows that cannot be chosen."""
        if len(self.candidates) == len(column):
            return list(column)
        masked = [math.inf] * len(column)
        for row in self.candidates:
            masked[row] = column[row]
        return masked


class PlacementRequest(NamedTuple):
    """The facts about one request that a policy may weigh. Built by the `Placer`."""

    prompt_tokens: int  # to prefill, the tokens of an interrupted answer included
    max_prefills: int  # prefill workers to name, at least 1; all but the first are fallbacks
    prefix: int = 0  # names the longest prefix whose state a prefill worker has; 0: none has any


class ClusterView(NamedTuple):
    """The workers that a policy chooses from. Built by the `Placer` for each decision."""

    prefill: RoleView
    decode: RoleView
    links: Links | None = None  # None: no bandwidth is known, or all are alike

    def of(self, role: Role) -> RoleView:
        """Return the workers of one role."""
        return self.prefill if role is Role.PREFILL else self.decode

    def late_s(self, prefill: int, rank: int, request: PlacementRequest) -> float:
        """Return the seconds by which a hand-off from one row to another takes longer than over the
        best link.
        """
        return self.lates_s(prefill, [rank], request)[0]

    def lates_s(self, prefill: int, ranks: Sequence[int], request: PlacementRequest) -> list[float]:
        """Return the same of several ranks."""
        links, decode = self.links, self.decode
        if links is None:
            return [0.0] * len(ranks)
        ids, cached = decode.worker_ids, decode.cached_tokens
        late = links.extras_s(prefill, [ids[row] for row in ranks], request.prompt_tokens)
        if cached:
            for place, row in enumerate(ranks):
                if row in cached:
                    lacks = request.prompt_tokens - cached[row]
                    late[place] = links.extra_s(prefill, ids[row], lacks)
        return late


class Placement(NamedTuple):
    """The decision of a policy, in worker ids."""

    prefills: tuple[str, ...]  # in the order in which the decode rank tries them; at least one
    decode: str
