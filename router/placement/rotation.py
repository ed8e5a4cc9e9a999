"""Taking turns."""

from bisect import bisect_right
from collections.abc import Sequence

from baton.core.role import Role
from baton.router.cluster_view.worker_table import id_order
from baton.router.placement.view import RoleView


class Rotation:
    """The worker of each role whose turn was last.

    It is remembered by id, so that a worker that joins or leaves does not disturb the order.
    """

    def __init__(self) -> None:
        self._last = dict.fromkeys(Role, "")
        self._row = dict.fromkeys(Role, 0)  # of the same worker, then

    def next(self, workers: RoleView, rows: Sequence[int]) -> list[int]:
        """Return `rows`, which ascend, rotated to begin behind the last turn's worker.

        The first of them has the turn now.
        """
        if not rows:
            return []
        ids, role = workers.worker_ids, workers.role
        rotated = rows
        if len(rows) > 1:
            last, row = self._last[role], self._row[role]
            if row < len(ids) and ids[row] == last:
                start = bisect_right(rows, row)
            else:  # workers have come or gone since
                start = bisect_right(rows, id_order(last), key=lambda row: id_order(ids[row]))
            rotated = [*rows[start:], *rows[:start]]
        self._row[role], self._last[role] = rotated[0], ids[rotated[0]]
        return [*rotated]
