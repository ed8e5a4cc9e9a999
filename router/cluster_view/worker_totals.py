"""The sums of what the engines of all workers have counted."""

from baton.router.cluster_view.worker_table import Change, Worker, WorkerTable
from baton.rpc.metric_aliases.figures import Totals


class WorkerTotals:
    """The counts of all workers, those that are gone included: a sum never falls.

    A worker that starts again counts from 0. What it had counted before stays in the sum.
    """

    def __init__(self, table: WorkerTable) -> None:
        self._table = table
        self._replaced = Totals()  # of starts that a later one of the same worker has ended
        self._newest: dict[str, tuple[int, Totals]] = {}  # each worker's incarnation and counts
        table.subscribe(self._on_change)

    def sums(self) -> Totals:
        """Return the sums of the newest reports."""
        for worker in self._table.workers():
            self._take(worker)
        return sum((totals for _, totals in self._newest.values()), self._replaced)

    def _on_change(self, change: Change) -> None:
        if change.before is not None:
            self._take(change.before)

    def _take(self, worker: Worker) -> None:
        if not worker.status.HasField("totals"):  # nothing reported yet, or an older release
            return
        incarnation = worker.identity.incarnation
        before, counted = self._newest.get(worker.worker_id, (incarnation, Totals()))
        if before != incarnation:
            self._replaced += counted
        self._newest[worker.worker_id] = incarnation, Totals.from_proto(worker.status.totals)
