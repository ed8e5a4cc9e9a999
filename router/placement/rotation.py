"""Taking turns."""

from bisect import bisect_right
from collections.abc import Sequence

from baton.core.role import Role
from baton.router.placement.view import RoleView
from baton.router.worker_table import id_order


class Rotation:
    """The worker of each role whose turn was last.

    It is remembered by id, so that a worker that joins or leaves does not disturb the order.
    """

    def __init__(self) -> None:
        self._last = dict.fromkeys(Role, "")

    def next(self, workers: RoleView, rows: Sequence[int]) -> list[int]:
        """Return `rows`, which ascend, rotated to begin behind the last turn's worker.

        The first of them has the turn now.
        """
        if not rows:
            return []
        ids = workers.worker_ids
        if len(rows) == 1:
            self._last[workers.role] = ids[rows[0]]
            return [*rows]
        last = id_order(self._last[workers.role])
        start = bisect_right(rows, last, key=lambda row: id_order(ids[row]))
        rotated = [*rows[start:], *rows[:start]]
        self._last[workers.role] = ids[rotated[0]]
        return rotated
