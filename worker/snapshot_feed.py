"""The news of a worker's prefix cache for routers: which prefixes it has the state of."""

from collections import deque
from collections.abc import Mapping

from baton.engine.cache.snapshot_log import EVICTED
from baton.proto.worker_pb2 import CacheReport

KEPT_BATCHES = 256
"""Batches of changes that are kept for routers that read slowly."""


class SnapshotFeed:
    """The snapshots of the prefix cache, and their last changes, for readers at their own pace."""

    def __init__(self) -> None:
        self._has: dict[int, int] = {}  # digest to depth
        self._batches: deque[Mapping[int, int]] = deque(maxlen=KEPT_BATCHES)
        self._sequence = 0  # of the newest batch

    def add(self, changes: Mapping[int, int]) -> None:
        """Apply changes, digest to depth, as `SnapshotLog.take` returns them."""
        if not changes:
            return
        for digest, depth in changes.items():
            if depth == EVICTED:
                self._has.pop(digest, None)
            else:
                self._has[digest] = depth
        self._batches.append(changes)
        self._sequence += 1

    def whole(self) -> CacheReport:
        """Return a report of all snapshots."""
        return CacheReport(
            sequence=self._sequence, whole=True, made=self._has, depths=self._has.values()
        )

    def since(self, sequence: int) -> CacheReport | None:
        """Return a report of the changes after a report of that `sequence`; None if there are
        none.

        It is whole where so much has changed that the changes are forgotten.
        """
        missed = self._sequence - sequence
        if missed > len(self._batches):
            return self.whole()
        if not missed:
            return None
        changes: dict[int, int] = {}
        for number in range(len(self._batches) - missed, len(self._batches)):
            changes |= self._batches[number]
        made = {digest: depth for digest, depth in changes.items() if depth != EVICTED}
        return CacheReport(
            sequence=self._sequence,
            after=sequence,
            made=made,
            depths=made.values(),
            evicted=[digest for digest, depth in changes.items() if depth == EVICTED],
        )
