"""This router's demand for each worker, by which workers divide themselves among routers."""

from baton.api.admission.admission_queue import AdmissionQueue
from baton.core.role import Role
from baton.proto.worker_pb2 import Demand
from baton.router.cluster_view.worker_table import Worker, WorkerTable
from baton.router.placement.placer import Placer


class Demands:
    """The demand by worker. Requests that wait are nobody's yet: each worker of a role is told of
    an even part of them.
    """

    def __init__(self, table: WorkerTable, placer: Placer, queue: AdmissionQueue) -> None:
        self._table = table
        self._placer = placer
        self._queue = queue
        table.subscribe_reports(lambda worker: queue.call_next())

    def of(self, worker: Worker, share: int = 0) -> Demand:
        """Return the demand on a worker. share: the number of the last share that was read."""
        workers = self._table.count(worker.role) or 1
        if worker.role is Role.PREFILL:
            held = -(-self._queue.prefilling_tokens // workers)
            waiting = self._queue.waiting_tokens
        else:
            held = self._placer.placed[worker.worker_id]
            waiting = self._queue.unplaced
        most = self._placer.most(worker)
        wanted = min(held + -(-waiting // workers), most)
        return Demand(wanted=wanted, held=held, most=most, share=share)

    def share_changed(self) -> None:
        """Let those requests go on for which there is room now."""
        self._queue.call_next()
