"""The metrics of the workers that a router knows, and of what it places on them."""

from collections.abc import Callable
from functools import cache

from prometheus_client import Counter

from baton.core.role import ROUTED_ROLES, Role
from baton.router.cluster_view.worker_table import Worker
from baton.router.metric_factory import RouterMetricFactory
from baton.router.reader_metrics import ReaderMetrics


class ClusterMetrics:
    """Workers that join and are lost, and attempts by worker."""

    def __init__(self, make: RouterMetricFactory) -> None:
        self.readers = ReaderMetrics(make)
        rank = "worker", "dp_group", "dp_rank"
        self._workers = make.gauge("workers", "Workers that hold a lease.", "role")
        self._losses = make.counter(
            "worker_losses",
            "Workers that ended, were cut off or fell silent without leaving.",
            "worker",
        )
        self._placements = make.counter(
            "placements", "Attempts that were started on a decode rank.", *rank
        )
        self._prefill_placements = make.counter(
            "prefill_placements",
            "Attempts, by the prefill worker that they tried first, or the rank that computes the "
            "prompt itself.",
            "worker",
        )
        self._retries = make.counter(
            "retries", "Attempts that a decode rank lost, and that another rank continues.", *rank
        )
        self._migrations = make.counter(
            "migrations", "Retries whose client had been given a part of the answer.", *rank
        )
        self._returns = make.counter(
            "returns", "Attempts that a decode rank gave back for a better place.", *rank
        )
        self._rank_requests = make.gauge(
            "rank_requests", "Requests of this router on a decode rank.", *rank
        )
        # `labels` takes a lock and makes texts of all names, for each request.
        self._placed_on: Callable[[str, int, int], Counter] = cache(self._placements.labels)
        self._read_by: Callable[[str], Counter] = cache(self._prefill_placements.labels)
        for role in ROUTED_ROLES:
            self._workers.labels(role.value).set(0)

    def workers(self, role: Role, count: int) -> None:
        self._workers.labels(role.value).set(count)

    def joined(self, worker: Worker, requests: Callable[[], float]) -> None:
        """Export a new worker's series, at 0, so that a rate of them has a beginning.

        requests: returns the number of this router's requests on it when it is scraped.
        """
        self._losses.labels(worker.worker_id)
        if worker.role is Role.PREFILL:
            self._prefill_placements.labels(worker.worker_id)
            return
        for counter in (self._placements, self._retries, self._migrations, self._returns):
            counter.labels(*_names(worker))
        self._rank_requests.labels(*_names(worker)).set_function(requests)

    def gone(self, worker: Worker) -> None:
        """Record that a worker's registration has ended."""
        if not worker.leaving:
            self._losses.labels(worker.worker_id).inc()
        if worker.role is Role.DECODE:
            self._rank_requests.remove(*_names(worker))

    def placed(self, rank: Worker, reader: Worker) -> None:
        """Count an attempt. reader: the worker that computes the prompt."""
        identity = rank.identity
        self._placed_on(rank.worker_id, identity.group, identity.rank).inc()
        self._read_by(reader.worker_id).inc()

    def returned(self, rank: Worker) -> None:
        """Count an attempt that `rank` gave back."""
        self._returns.labels(*_names(rank)).inc()

    def replaced(self, rank: Worker, *, begun: bool) -> None:
        """Count an attempt that `rank` lost. begun: the client has a part of the answer."""
        self._retries.labels(*_names(rank)).inc()
        if begun:
            self._migrations.labels(*_names(rank)).inc()


def _names(rank: Worker) -> tuple[str, str, str]:
    return rank.worker_id, str(rank.group), str(rank.rank)
