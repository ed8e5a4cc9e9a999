"""The sessions to the decode ranks of the table."""

import asyncio
from collections.abc import Callable

from baton.core.role import Role
from baton.core.supervised import OnFailure, ProcessSupervisor, spawn
from baton.proto.common_pb2 import WorkerIdentity
from baton.router.cluster_view.worker_table import Change, Worker, WorkerTable
from baton.router.sessions.rank_session import RankSession, SessionOptions


class RankSessions:
    """A session to each decode rank, opened and closed as ranks join and leave the table."""

    def __init__(
        self,
        table: WorkerTable,
        options: SessionOptions,
        on_change: Callable[[], None],
        owner: ProcessSupervisor,
    ) -> None:
        """on_change: called when a rank becomes usable or stops being usable.

        Sessions are opened by the table's changes, which must happen inside a running loop.
        """
        self._table = table
        self._options = options
        self._on_change = on_change
        self._owner = owner
        self._sessions: dict[str, RankSession] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopped = False
        table.subscribe(self._on_table_change)

    def session(self, worker: Worker) -> RankSession | None:
        """Return the session to this registration of a worker; None when it is not connected."""
        session = self._sessions.get(worker.worker_id)
        if session is None or session.worker.registration != worker.registration:
            return None
        return session if session.ready else None

    async def stop(self) -> None:
        """Close all sessions. None is opened afterwards."""
        self._stopped = True
        tasks = list(self._tasks.values())
        for worker_id in list(self._sessions):
            self._close(worker_id, "this router stops")
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_table_change(self, change: Change) -> None:
        worker = change.after or change.before
        if self._stopped or worker is None:
            return
        if worker.role is Role.PREFILL:
            returns = change.before is not None and change.before.leaving
            if change.before is None or (returns and change.after is not None):
                for session in self._sessions.values():
                    session.announce_prefills([worker.identity])
            return
        if change.after is None:
            self._close(worker.worker_id, change.reason)
        elif change.before is None:
            self._open(worker)

    def _prefills(self) -> list[WorkerIdentity]:
        return [w.identity for w in self._table.workers(Role.PREFILL) if not w.leaving]

    def _open(self, worker: Worker) -> None:
        session = RankSession(worker, self._options, self._prefills, self._on_change)
        self._sessions[worker.worker_id] = session
        # ANEW: its requests have failed with the connection, and the next one begins with Hello.
        self._tasks[worker.worker_id] = spawn(
            session.run,
            self._owner,
            OnFailure.ANEW,
            f"session with {worker.worker_id}",
            may_return=True,  # when the rank has said that it stops
        )

    def _close(self, worker_id: str, reason: str) -> None:
        self._sessions.pop(worker_id).close(reason)
        self._tasks.pop(worker_id).cancel()
