"""The record of what each rank of a replica has written: it must be the same on all of them."""

import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from baton.engine.step.draft_batch import DraftBatch
from baton.engine.step.forward_batch import ForwardBatch
from baton.kernels.verify import Accepted


@dataclass(frozen=True)
class Books:
    """The places in its pools that one rank has written since it began.

    slots, pages: checksums of the places that its steps, drafts and commits wrote, in order
    tables: checksum of the block tables' rows that the last step read
    """

    slots: int
    pages: int
    tables: int

    def differences(self, leader: "Books") -> Iterator[str]:
        """Yield what differs from the leader's, of which a rank's books are a copy."""
        if self.slots != leader.slots:
            yield "has written other slots than rank 0"
        if self.pages != leader.pages:
            yield "has written other pages than rank 0"
        if self.tables != leader.tables:
            yield "has other block tables than rank 0"


class RankBooks:
    """The books of this rank. On a GPU they stay empty: to read a step's places would hold up the
    stream, and what the others run is a copy, which the leader's device sends."""

    def __init__(self) -> None:
        self._slots = self._pages = 0
        self._last: ForwardBatch | None = None

    def ran(self, batch: ForwardBatch) -> None:
        """Note a step."""
        if batch.write_slots.device.type != "cpu":
            return
        self._slots = _plus(self._slots, batch.write_slots)
        if batch.snapshots is not None:
            self._slots = zlib.crc32(array("q", batch.snapshots.slots), self._slots)
        self._pages = _plus(self._pages, batch.token_pages, batch.token_offsets)
        self._last = batch

    def drafted(self, batch: DraftBatch) -> None:
        """Note one depth of drafts."""
        if batch.token_pages.device.type == "cpu":
            self._pages = _plus(self._pages, batch.token_pages, batch.token_offsets)

    def moved(self, path: Tensor) -> None:
        """Note the paths of trees that are kept."""
        self._pages = _plus(self._pages, path)

    def committed(self, accepted: Accepted) -> None:
        """Note a commit."""
        if accepted.counts.device.type != "cpu":
            return
        self._slots = _plus(
            self._slots, accepted.write_slots, accepted.counts, accepted.track_slots
        )

    def books(self) -> Books:
        """Return what was noted. Call it when no step runs: it reads the block tables."""
        tables = 0
        if self._last is not None:
            rows = self._last.table_rows
            tables = _plus(tables, self._last.block_tables.index_select(0, rows))
        return Books(self._slots, self._pages, tables)


def _plus(checksum: int, *places: Tensor) -> int:
    for each in places:
        checksum = zlib.crc32(each.long().cpu().numpy().tobytes(), checksum)
    return checksum
