"""A router's numbers for the metric names of other servers."""

from collections.abc import Callable, Iterable

from baton.proto.worker_pb2 import OwnerCount
from baton.router.cluster_view.worker_table import WorkerTable
from baton.router.cluster_view.worker_totals import WorkerTotals
from baton.rpc.metric_aliases.figures import CurrentLoad, Figures, ServedWork

_NOT_HELD = ("free", "cache")
"""Owners of slots and pages that give way to requests, as workers report them."""


class ClusterFigures:
    """The load of all workers together, and what this router's requests were given."""

    def __init__(
        self, table: WorkerTable, waiting: Callable[[], int], served: Callable[[], ServedWork]
    ) -> None:
        """waiting: requests that wait at this router. served: of its own requests."""
        self._table = table
        self._waiting = waiting
        self._served = served
        self._totals = WorkerTotals(table)

    def __call__(self) -> Figures:
        """Return the numbers of this moment."""
        return Figures(self._load(), self._served(), self._totals.sums())

    def _load(self) -> CurrentLoad:
        reports = [worker.status for worker in self._table.workers()]
        sizes = [_total(report.pages) for report in reports]
        pages = sum(sizes)
        weighted = sum(size * each.memory_held for size, each in zip(sizes, reports, strict=True))
        return CurrentLoad(
            running=sum(report.running for report in reports),
            waiting=self._waiting() + sum(report.waiting for report in reports),
            page_size=max((report.page_size for report in reports), default=0),
            pages=pages,
            pages_held=sum(_held(report.pages) for report in reports),
            slots=sum(_total(report.slots) for report in reports),
            slots_held=sum(_held(report.slots) for report in reports),
            memory_held=weighted / pages if pages else 0.0,
            host_pages=sum(_total(report.host.pages) for report in reports),
            host_pages_used=sum(_used(report.host.pages) for report in reports),
        )


def _total(owners: Iterable[OwnerCount]) -> int:
    return sum(each.count for each in owners)


def _held(owners: Iterable[OwnerCount]) -> int:
    return sum(each.count for each in owners if each.owner not in _NOT_HELD)


def _used(owners: Iterable[OwnerCount]) -> int:
    return sum(each.count for each in owners if each.owner != "free")
