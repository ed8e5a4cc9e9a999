"""Binds track slots to the rows of a step that is being planned."""

import sys

from baton.engine.cache.prefix_node import Snapshot
from baton.engine.cache.track_plan import prefill_depths
from baton.engine.layout.grids import Grids
from baton.engine.request.request import Request
from baton.engine.schedule.donations import Donations


class Tracker:
    """A slot is bound to one step, recorded in its Batch, and goes to the cache, or back to the
    pool, when that step's result is processed. None free: the snapshot is skipped.
    """

    def __init__(self, donations: Donations, grids: Grids, budget: int, on: bool) -> None:
        """budget: snapshots a prefill row. on: the strategy is extra_buffer, the model has state,
        and there is a cache to keep it in."""
        self._donations = donations
        self._grids = grids
        self._budget = budget
        self._on = on
        self._decode_grid = grids.decode

    def prefill(self, request: Request, start: int, end: int) -> tuple[Snapshot, ...]:
        """Bind slots for the snapshots of a row that computes tokens [start, end)."""
        if not self._on:
            return ()
        branches = request.spec.junctions
        if request.branch is not None:
            branches = (*branches, request.branch)
        plan = prefill_depths(
            start,
            end - start,
            self._grids.checkpoint,
            branches,
            self._budget,
            prompt=request.target,
        )
        bound: list[Snapshot] = []
        for depths, opportunistic in ((reversed(plan.wanted), False), (plan.opportunistic, True)):
            for depth in depths:
                slot = self._donations.take_track_slot(wanted=not opportunistic)
                if slot is not None:
                    bound.append(Snapshot(depth, slot, opportunistic))
        return tuple(bound)

    def next_decode(self, start: int) -> int:
        """Return the first token from `start` on whose row of one token takes a snapshot."""
        if not self._on:
            return sys.maxsize
        return start + -(start + 1) % self._decode_grid

    @property
    def most_tokens(self) -> int:
        """Tokens that a row may verify: it and the row before it, of which it is not known how far
        it gets, have at most one snapshot among them.
        """
        return (self._decode_grid + 1) // 2 if self._on else sys.maxsize

    def window(self, start: int, end: int) -> tuple[Snapshot, ...]:
        """Bind a slot for the snapshot among tokens [start, end) of a row of which it is not known
        how far it gets. It is written if it gets there.
        """
        depth = self.next_decode(start) + 1
        return self.decode(depth) if depth <= end else ()

    def decode(self, end: int) -> tuple[Snapshot, ...]:
        """Bind a slot for the snapshot of a row whose state will hold `end` tokens after
        this step.
        """
        if end % self._decode_grid or not self._on:
            return ()
        slot = self._donations.take_track_slot(wanted=True)
        return () if slot is None else (Snapshot(end, slot),)
