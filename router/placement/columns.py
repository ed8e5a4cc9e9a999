"""The workers of one role in columns, which are kept up to date in place."""

from collections.abc import Mapping, Sequence

from baton.api.admission.room import CHUNKS_AHEAD
from baton.core.role import Role
from baton.router.cluster_view.worker_table import Change, Worker, WorkerTable
from baton.router.placement.links import LinkTable
from baton.router.placement.placed_load import PlacedLoad
from baton.router.placement.view import RoleView


class Columns:
    """The registered workers of one role: row i is the same worker in each column.

    Rows are ordered by worker id. A report and a placement change one row; a worker that comes,
    goes or leaves makes all of them anew.
    """

    def __init__(self, table: WorkerTable, role: Role, load: PlacedLoad) -> None:
        self._table = table
        self._role = role
        self._load = load
        self.rows: dict[str, int] = {}
        self.workers: list[Worker] = []
        self.ids: list[str] = []
        self.reported: list[int] = []
        self.placed: list[int] = []
        self.capacity: list[int] = []
        self.fullness: list[float] = []
        self.queued_tokens: list[int] = []
        self.prompt_token_us: list[float] = []
        self.leaving: list[bool] = []
        self.full: set[int] = set()
        """The rows of the decode ranks on which this router has `most` requests, or more."""
        self.links = LinkTable()
        self.most: list[int] = []
        """The most that the router may have there: requests on a rank, or tokens of prompts.
        Its share where others have one too, else all."""
        self.numbers: list[int] = []
        """The numbers of decode ranks in the cluster."""
        self.shared = 0
        """Workers of which other routers have a part."""
        self.staying: list[int] = []
        """The rows of the workers that do not leave."""
        table.subscribe(self._on_change)
        table.subscribe_reports(self._on_report)
        load.subscribe(self.rows, self._set_load)
        self._shown: tuple[object, ...] = ()  # what a view shows, but for its last two fields
        self._fill()

    def view(self, candidates: Sequence[int], cached: Mapping[str, int]) -> RoleView:
        """Return a view of the columns as they are. cached: tokens by worker id."""
        rows = self.rows
        held = {rows[name]: tokens for name, tokens in cached.items() if name in rows}
        return RoleView._make((*self._shown, held, candidates))

    def _on_report(self, worker: Worker) -> None:
        row = self.rows.get(worker.worker_id)
        if row is not None and worker.role is self._role:
            self._load.read.pop(worker.worker_id, None)
            self.shared += (worker.share is not None) - (self.workers[row].share is not None)
            self._set(row, worker)

    def _on_change(self, change: Change) -> None:
        worker = change.after or change.before
        if worker is not None and worker.role is self._role:
            self._fill()

    def _fill(self) -> None:
        self.workers = self._table.workers(self._role)
        self.ids = [worker.worker_id for worker in self.workers]
        self.shared = 0
        self.rows.clear()  # in place: the load has it too
        self.rows.update({name: row for row, name in enumerate(self.ids)})
        self.numbers = [worker.rank for worker in self.workers]
        for column in (self.reported, self.placed, self.capacity, self.queued_tokens, self.most):
            column[:] = [0] * len(self.workers)
        self.full.clear()
        self.links.clear(len(self.workers))
        self.fullness, self.prompt_token_us = ([0.0] * len(self.workers) for _ in range(2))
        for row, worker in enumerate(self.workers):
            self.shared += worker.share is not None
            self._set(row, worker)
        self.leaving = [worker.leaving for worker in self.workers]
        self._shown = (self._role, self.ids, self.reported, self.placed, self.capacity,
                       self.fullness, self.queued_tokens, self.prompt_token_us,
                       self.leaving)  # fmt: skip
        self.staying = [row for row, leaving in enumerate(self.leaving) if not leaving]

    def _set(self, row: int, worker: Worker) -> None:
        self.workers[row] = worker
        self.reported[row] = worker.load
        self.capacity[row] = worker.capacity
        self.prompt_token_us[row] = worker.status.prompt_token_us
        self.links.set(row, worker.status)
        most = worker.share
        if most is None:
            most = prompt_tokens(worker) if self._role is Role.PREFILL else worker.capacity
        self.most[row] = most
        self._set_load(row)

    def _set_load(self, row: int) -> None:
        """Follow a change of what a worker reports, or of the load that this router puts on it."""
        worker, reported = self.workers[row], self.reported[row]
        name = worker.worker_id
        placed = self.placed[row] = self._load.requests[name]
        full = (reported if reported > placed else placed) / self.capacity[row]
        held = worker.status.memory_held
        self.fullness[row] = full if full > held else held
        if placed < self.most[row]:
            self.full.discard(row)
        elif self._role is Role.DECODE:
            self.full.add(row)
        queued = worker.status.queued_tokens
        if queued and self._role is Role.DECODE:  # the report is older than some first tokens
            queued = max(queued - self._load.read[name], 0)
        self.queued_tokens[row] = max(queued, self._load.prompt_tokens[name])


def prompt_tokens(prefill: Worker) -> int:
    """Return the prompt tokens that all routers together may have on a prefill worker."""
    return CHUNKS_AHEAD * prefill.details.prefill_chunk
