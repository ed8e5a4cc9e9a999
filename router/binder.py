"""The binding of requests to workers, when their turn comes."""

from collections.abc import Callable

from baton.api.admission.admission_queue import QueuePlace
from baton.api.errors import RETRY_AFTER_S
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.router.cluster_view.worker_table import WorkerTable
from baton.router.notifier import Notifier
from baton.router.placement.assignment import Assignment
from baton.router.placement.placer import Placer
from baton.router.sessions.live_requests import LiveRequest, LiveRequests
from baton.router.sessions.rank_session import RankSession
from baton.router.sessions.rank_sessions import RankSessions


class Binder:
    """Waits for a request's turn in the queue, and places it then."""

    def __init__(
        self,
        live: LiveRequests,
        table: WorkerTable,
        placer: Placer,
        ranks: RankSessions,
        changed: Notifier,
        worker_wait_s: float,
        clock: Callable[[], float],
    ) -> None:
        """changed: notified when workers or the router's state may be others.
        worker_wait_s: a request waits so long while no worker could take it.
        """
        self._live = live
        self._table = table
        self._placer = placer
        self._ranks = ranks
        self._changed = changed
        self._worker_wait_s = worker_wait_s
        self._clock = clock

    async def bind(self, live: LiveRequest, place: QueuePlace) -> tuple[Assignment, RankSession]:
        """Return the workers of the request's next attempt, once it is its turn.

        Raises the `ApiError` that it was stopped or refused with.
        """
        while True:
            if place.waits:
                with self._placer.waiting(live.prefixes):
                    await self._wait_for_turn(live, place)
            else:
                await place.turn()
            self._check_goes_on(live)
            assignment = self._placer.place(
                live.prefixes,
                place.waiting.rank,
                live.lost_on,
                live.avoid,
                for_rank=place.for_rank,
            )
            session = None if assignment is None else self._ranks.session(assignment.rank)
            if assignment is not None and session is not None:
                return assignment, session
            place.wait_again()  # a worker was lost since it was called, or has another prompt now

    async def _wait_for_turn(self, live: LiveRequest, place: QueuePlace) -> None:
        """Wait for a request's turn: up to `worker_wait_s` while no worker could take it.

        A started answer that is pinned to a rank waits as long for that rank to come back.
        After that any other rank may continue it.
        """
        deadline: float | None = None
        while place.waits:
            self._check_goes_on(live)  # it may have been stopped before it waited
            pinned = place.waiting.rank
            if pinned is not None and self._table.has_left(pinned):
                place.unpin()
                continue
            if self._placer.could_place(pinned):
                deadline = None
            elif deadline is None:
                deadline = self._clock() + self._worker_wait_s
            left = None if deadline is None else deadline - self._clock()
            if left is None or left > 0:
                await place.changed(self._changed.wait(left))
            elif pinned is not None and live.attempt:
                place.unpin()
                deadline = None
            else:
                place.refuse(self._unplaceable(pinned))
        await place.turn()

    def _check_goes_on(self, live: LiveRequest) -> None:
        """Raise the `ApiError` that a request was stopped with, or UNAVAILABLE when closing."""
        if live.stop_error is not None:
            raise live.stop_error
        self._live.check_open()

    def _unplaceable(self, pinned: int | None) -> ApiError:
        error = self._placer.missing() or ApiError(
            ErrorCode.UNAVAILABLE,
            f"decode rank {pinned} was lost and is not back after "
            f"{self._worker_wait_s:g} s; send it again later, or leave routed_dp_rank out "
            "to use any other",
            param="routed_dp_rank",
        )
        error.retry_after_s = RETRY_AFTER_S
        return error
