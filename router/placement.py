"""Which workers serve one request."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from baton.api.errors import ApiError, ErrorCode, invalid
from baton.router.policies import POLICIES, Candidate
from baton.router.worker_table import Role, Worker, WorkerTable


@dataclass(frozen=True)
class Placement:
    """The router's choice for one request. Set once, when the request is dispatched."""

    prefills: tuple[Worker, ...]  # the first is to be tried first; the others are fallbacks
    rank: Worker  # decodes


class Hold:
    """One request's weight on the workers that it was placed on."""

    def __init__(self, placement: Placement, placed: Counter[str]) -> None:
        self._placed = placed
        self._prefill: str | None = placement.prefills[0].worker_id
        self._rank: str | None = placement.rank.worker_id
        placed.update((self._prefill, self._rank))

    def prefilled(self) -> None:
        """The first token came: the prefill worker is done with it. Again: nothing."""
        if self._prefill is not None:
            self._placed[self._prefill] -= 1
            self._prefill = None

    def release(self) -> None:
        """The request ended. Again: nothing."""
        self.prefilled()
        if self._rank is not None:
            self._placed[self._rank] -= 1
            self._rank = None


class Placer:
    """Chooses among the workers of the table that are not leaving.

    `reachable` says of a decode rank whether requests can be started on it now. Reports of load
    are old by up to a heartbeat, so what this router placed itself counts too.
    """

    def __init__(
        self,
        table: WorkerTable,
        reachable: Callable[[Worker], bool],
        policy: str,
        prefill_fallbacks: int,
    ) -> None:
        self._table = table
        self._reachable = reachable
        self._policies = {role: POLICIES[policy]() for role in Role}
        self._named = 1 + prefill_fallbacks
        self.placed: Counter[str] = Counter()
        """Requests of this router that each worker is now busy with, by worker_id."""

    def place(
        self, only_rank: int | None = None, lost_on: Collection[int] = ()
    ) -> Placement | None:
        """None where no worker of a role can take it now; `missing` says which.

        only_rank: the number of the decode rank to use, for as long as it is in the cluster: once
        it has left, any other is. INVALID_REQUEST where no rank has had that number.
        lost_on: registrations of ranks that lost this request before: used where there is no other.
        """
        prefills, ranks = self._usable(Role.PREFILL), self._usable(Role.DECODE)
        if only_rank is not None and not self._table.has_left(only_rank):
            self._check_number(only_rank)
            ranks = [r for r in ranks if r.rank == only_rank]
        if not prefills or not ranks:
            return None
        ranks = [r for r in ranks if r.registration not in lost_on] or ranks
        rank = self._ordered(Role.DECODE, ranks)[0]
        return Placement(tuple(self._ordered(Role.PREFILL, prefills)[: self._named]), rank)

    def hold(self, placement: Placement) -> Hold:
        """Counts in the load of its workers until released."""
        return Hold(placement, self.placed)

    def missing(self) -> ApiError | None:
        """Why nothing can be placed; None when something can."""
        counts = {role: len(self._usable(role)) for role in Role}
        absent = [role.value for role, count in counts.items() if not count]
        if not absent:
            return None
        known = {role.value: len(self._table.workers(role)) for role in Role}
        return ApiError(
            ErrorCode.UNAVAILABLE,
            f"no {' and no '.join(absent)} worker is ready; registered are "
            f"{known['prefill']} prefill and {known['decode']} decode; start one, or see why those "
            "that should be there do not register",
            expected="at least one worker of each role",
            actual=f"{counts[Role.PREFILL]} prefill, {counts[Role.DECODE]} decode ready",
        )

    def capacity(self) -> int:
        """Requests that all decode ranks run at once."""
        return sum(w.slots for w in self._table.workers(Role.DECODE) if not w.leaving)

    def _usable(self, role: Role) -> list[Worker]:
        workers = [w for w in self._table.workers(role) if not w.leaving]
        return workers if role is Role.PREFILL else [w for w in workers if self._reachable(w)]

    def _ordered(self, role: Role, workers: Sequence[Worker]) -> list[Worker]:
        by_id = {w.worker_id: w for w in workers}
        candidates = [
            Candidate(w.worker_id, max(w.load, self.placed[w.worker_id]), w.slots) for w in workers
        ]
        return [by_id[c.worker_id] for c in self._policies[role].order(candidates)]

    def _check_number(self, rank: int) -> None:
        """Before the first rank has registered, any number may be right."""
        numbers = self._table.ranks()
        if numbers and rank not in numbers:
            valid = ", ".join(map(str, numbers))
            raise invalid(
                "routed_dp_rank",
                f"routed_dp_rank is {rank}; the decode ranks are {valid}",
                expected=f"one of {valid}",
                actual=rank,
            )
