"""Copies of prefixes from the host's memory back into the device's, for requests that wait."""

from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass, field
from itertools import islice
from time import monotonic

from baton.engine.handoff.fetch_cost import FetchCost
from baton.engine.layout.token_key import TOKEN_BYTES
from baton.engine.request.request import Promotion, Request
from baton.engine.schedule.row_planner import RowPlanner
from baton.engine.schedule.scheduler import Scheduler
from baton.engine.tiers.file_tier import FileTier
from baton.engine.tiers.prefix_copy import CopyRoute, PrefixCopy

_LOOKED_AHEAD = 2
"""Waiting requests, beside those that could run now, for which prefixes are copied back: one that
is copied too early only pushes others out of the cache."""
MOST_LOADS = 4
"""Prefixes that are copied back at once: each has a slot and pages that no request has then."""
_IDLE_S = 0.02
"""The longest that the engine's calls wait, where there is nothing to do but to copy back."""
_LOAD_S = 30.0
"""The time after which a request no longer waits for its prefix."""


@dataclass(eq=False, kw_only=True)
class _Load(PrefixCopy):
    """A prefix that a request waits for."""

    promotion: Promotion  # the request's
    deadline: float = field(default_factory=lambda: monotonic() + _LOAD_S)  # of its wait


class Loads:
    """The prefixes that come back for the next requests."""

    def __init__(
        self,
        route: CopyRoute,
        scheduler: Scheduler,
        planner: RowPlanner,
        most_running: int,
        files: FileTier | None,
    ) -> None:
        """route: from the host's cache into the device's. planner: knows how far a request may
        resume. files: from which prefixes come into the host's cache; None: there are none."""
        self.route = route
        self._scheduler, self._planner = scheduler, planner
        self._most_running = most_running
        self._files = files
        self._loads: list[_Load] = []
        self.cost = FetchCost()

    @property
    def number(self) -> int:
        """Prefixes that are on their way."""
        return len(self._loads)

    @property
    def tickets(self) -> int:
        """Reservations of the device that are for prefixes on their way."""
        return sum(load.reservation is not None for load in self._loads)

    def promote(self) -> None:
        """Begin to copy what the next requests could resume from."""
        for load in [each for each in self._loads if each.reservation is None]:
            self._reserve(load)
        pools, waiting = self.route.target.pools, self._scheduler.waiting
        places = self._most_running - self._scheduler.admitted
        room = pools.free_pages - self._scheduler.headroom
        for request in islice(waiting, max(_LOOKED_AHEAD, places)):
            room -= pools.pages_for(request.target)
            if room < 0 and request is not waiting.first:
                break  # its prefix would push out those that came back for requests before it
            promotion = request.promotion
            if (promotion is None or promotion.crowded) and not request.pending:
                request.promotion = self._looked(request)

    def wait(self) -> None:
        """Wait a moment for a copy where there is nothing else to do."""
        pools = self.route.target.pools
        idle = not self._scheduler.running and self._scheduler.next_admissible() is None
        if idle and pools.launched == pools.completed:
            copies = [load.copy.done for load in self._loads if load.copy is not None]
            copies += self._files.reading if self._files is not None else []
            if copies:
                wait(copies, _IDLE_S, FIRST_COMPLETED)
                self.collect()

    def _looked(self, request: Request) -> Promotion | None:
        """Look how far `request` could resume from each memory, and begin a copy where that is
        sooner than computing. As before where too many are under way: the request waits for its
        turn."""
        limit = max(0, self._planner.resume_limit(request))
        key, salt = request.key(0, request.target), request.spec.cache_salt
        there = self.route.source.pools.cache.match(key, limit, salt)
        here = self.route.target.pools.cache.match(key, limit, salt)
        promotion = Promotion(here.depth, there.depth, unfiled=max(here.depth, there.depth))
        if (before := request.promotion) is not None:
            # What has come for it since then is the host's all the same.
            promotion.below = min(before.below, here.depth)
            promotion.copied = before.copied and here.depth >= there.depth
            promotion.again = before.again - (before.copied and not promotion.copied)
            promotion.unfiled = min(before.unfiled, promotion.unfiled)
            promotion.searched = before.searched
        if self._files is not None and not promotion.searched:
            if self._files.crowded:
                return before
            promotion.searched = True
            if self._files.fetch(promotion, key, limit, salt):
                return promotion
        if there.depth <= here.depth or not self._sooner(here.depth, there.depth, here.kv_depth):
            promotion.over = True
            return promotion
        if len(self._loads) >= MOST_LOADS:
            return before
        loan = self.route.source.lend_node(there.node)
        load = _Load(key[: there.depth * TOKEN_BYTES], salt, loan, promotion=promotion)
        self._loads.append(load)
        self._reserve(load)
        return promotion

    def _sooner(self, here: int, there: int, kv: int) -> bool:
        """Return true if copying is sooner than computing the tokens from `here` to `there`. kv:
        tokens whose KV need not be copied."""
        pools = self.route.source.pools
        nbytes = pools.slot_bytes + pools.pages_for(max(0, there - kv)) * pools.page_bytes
        computing_s = (there - here) * self._scheduler.speeds.prompt_token_s
        return self.cost.sooner(nbytes, computing_s)

    def _reserve(self, load: _Load) -> None:
        """Reserve memory for a prefix and begin to copy it; or give it up, where there is none."""
        if self.route.reserve(load, self._scheduler.headroom):
            return
        if not self.route.target.reservations.promised(load.name):
            self._end(load)
            load.promotion.crowded = True

    def _end(self, load: _Load) -> None:
        self._loads.remove(load)
        load.promotion.over = True
        if self.route.end(load) and load.copy is not None:
            load.promotion.copied = True
            self.cost.took(load.copy.nbytes, load.copy.done.result() or 0.0)

    def collect(self) -> None:
        """Take over what has been copied."""
        for load in list(self._loads):
            if load.over:
                self._end(load)
            elif monotonic() > load.deadline:
                load.promotion.over = True

    def close(self) -> None:
        """Stop the copies under way, and wait for their end."""
        for load in self._loads:
            if load.copy is not None:
                load.copy.stop()
        self.route.close()
