"""Who is in the cluster, as far as this router knows.

Pure: no sockets, no tasks, and the clock is handed in. A worker is in the table from its
registration until its stream ends, its lease runs out, or a newer incarnation takes its place.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from baton.api.errors import ApiError, ErrorCode
from baton.proto.common_pb2 import DECODE, PREFILL, Hello, WorkerIdentity
from baton.proto.version import PROTOCOL_MAJOR
from baton.proto.worker_pb2 import WorkerStatus
from baton.router.errors import Refused


class Role(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"


_ROLES = {PREFILL: Role.PREFILL, DECODE: Role.DECODE}


@dataclass(frozen=True)
class Worker:
    """One worker as it last described itself. Messages in it are never written to."""

    identity: WorkerIdentity
    role: Role
    fingerprint: Mapping[str, str]
    registration: int  # counts up in this table; the newest of a worker_id is the valid one
    status: WorkerStatus = field(default_factory=WorkerStatus)
    leaving: bool = False

    @property
    def worker_id(self) -> str:
        return self.identity.worker_id

    @property
    def group(self) -> int:
        """A decode rank's data-parallel group."""
        return self.identity.group

    @property
    def rank(self) -> int:
        """A decode rank's number among all of them: what `routed_dp_rank` names."""
        return self.identity.rank

    @property
    def load(self) -> int:
        """Requests on it, from whichever router."""
        return self.status.running + self.status.waiting

    @property
    def slots(self) -> int:
        """Requests that it runs at once; 1 where it did not say."""
        return max(self.status.max_running, 1)


@dataclass(frozen=True)
class Change:
    """`before` None: it joined. `after` None: it is gone, and `reason` says why."""

    before: Worker | None
    after: Worker | None
    reason: str = ""


class WorkerTable:
    """Workers by id, each with a lease of `lease_s` seconds of `clock`.

    `check` says when it is to be called again. The time by which a caller is late, because its
    process was held up, counts as nobody's silence: the workers' reports may lie unread.
    """

    def __init__(self, lease_s: float, clock: Callable[[], float]) -> None:
        self._lease_s = lease_s
        self._clock = clock
        self._workers: dict[str, Worker] = {}
        self._deadlines: dict[str, float] = {}
        self._away: set[int] = set()  # ranks that went without a word
        self._left: set[int] = set()  # ranks that went for good
        self._subscribers: list[Callable[[Change], None]] = []
        self._registrations = 0
        self._due = clock()  # the next `check`

    def subscribe(self, listener: Callable[[Change], None]) -> None:
        """`listener` is told of every join, loss, and change of `leaving`."""
        self._subscribers.append(listener)

    def workers(self, role: Role | None = None) -> list[Worker]:
        """A snapshot, in an order that does not depend on who came first: w2 is before w10."""
        chosen = (w for w in self._workers.values() if role is None or w.role is role)
        return sorted(chosen, key=lambda w: (len(w.worker_id), w.worker_id))

    def ranks(self) -> list[int]:
        """The numbers of the decode ranks that stay: those here, and those that went without
        saying that they leave, which are started again."""
        here = {w.rank for w in self.workers(Role.DECODE) if not w.leaving}
        return sorted(here | (self._away - self._left))

    def has_left(self, rank: int) -> bool:
        """There was a decode rank of that number; it has left for good, or is leaving."""
        leaving = {w.rank for w in self.workers(Role.DECODE) if w.leaving}
        return rank in leaving | self._left and rank not in self.ranks()

    def retire(self, ranks: Collection[int]) -> None:
        """These are not started again. One that is here all the same stays until it goes; one that
        registers after this is one of the cluster again."""
        self._left.update(ranks)

    def register(self, hello: Hello) -> Worker:
        """Take a worker on, or raise `Refused`."""
        role = self._checked_role(hello)
        self._compare_fingerprint(hello)
        before = self._workers.get(hello.worker.worker_id)
        if before is not None and before.identity.incarnation > hello.worker.incarnation:
            raise Refused(
                ApiError(
                    ErrorCode.UNAVAILABLE,
                    f"a newer start of worker {before.worker_id} is registered; stop this one",
                    expected=f"incarnation {before.identity.incarnation} or later",
                    actual=f"incarnation {hello.worker.incarnation}",
                    retryable=False,
                )
            )
        if before is not None:
            self._remove(before, "a newer registration took its place")
        self._registrations += 1
        worker = Worker(hello.worker, role, dict(hello.fingerprint), self._registrations)
        self._workers[worker.worker_id] = worker
        if role is Role.DECODE:
            self._away.discard(worker.rank)
            self._left.discard(worker.rank)
        self._renew(worker)
        self._tell(Change(None, worker))
        return worker

    def report(self, worker: Worker, status: WorkerStatus | None, leaving: bool) -> bool:
        """Renew the lease. False: this registration is no longer the valid one."""
        current = self._current(worker)
        if current is None:
            return False
        after = replace(
            current,
            status=current.status if status is None else status,
            leaving=current.leaving or leaving,
        )
        self._workers[worker.worker_id] = after
        self._renew(after)
        if after.leaving != current.leaving:
            self._tell(Change(current, after))
        return True

    def remove(self, worker: Worker, reason: str) -> None:
        """The registration ended; nothing where it had been replaced before."""
        current = self._current(worker)
        if current is not None:
            self._remove(current, reason)

    def heard_s(self, worker: Worker) -> float:
        """Seconds since its last report, or since it registered. Of a worker that is here."""
        return self._lease_s - (self._deadlines[worker.worker_id] - self._clock())

    def check(self) -> float:
        """Drop the workers whose lease has run out; in how many seconds to call again."""
        now = self._clock()
        late_s = max(0.0, now - self._due)
        for worker in self.workers():
            at = min(self._deadlines[worker.worker_id] + late_s, now + self._lease_s)
            self._deadlines[worker.worker_id] = at
            if now >= at:
                self._remove(worker, f"no report for its lease of {self._lease_s:g} s")
        again_s = min([self._lease_s / 4, *(at - now for at in self._deadlines.values())])
        self._due = now + again_s
        return again_s

    def _current(self, worker: Worker) -> Worker | None:
        current = self._workers.get(worker.worker_id)
        valid = current is not None and current.registration == worker.registration
        return current if valid else None

    def _renew(self, worker: Worker) -> None:
        self._deadlines[worker.worker_id] = self._clock() + self._lease_s

    def _remove(self, worker: Worker, reason: str) -> None:
        del self._workers[worker.worker_id]
        del self._deadlines[worker.worker_id]
        if worker.role is Role.DECODE:
            (self._left if worker.leaving else self._away).add(worker.rank)
        self._tell(Change(worker, None, reason))

    def _tell(self, change: Change) -> None:
        for listener in self._subscribers:
            listener(change)

    def _checked_role(self, hello: Hello) -> Role:
        if hello.protocol_major != PROTOCOL_MAJOR:
            raise Refused(
                incompatible(
                    "the protocol's major version differs; run the same release everywhere",
                    str(PROTOCOL_MAJOR),
                    str(hello.protocol_major),
                )
            )
        if not hello.worker.worker_id or not hello.worker.address:
            raise Refused(
                ApiError(ErrorCode.INVALID_REQUEST, "Hello names no worker_id or no address")
            )
        if hello.worker.role not in _ROLES:
            raise Refused(
                ApiError(
                    ErrorCode.INVALID_REQUEST,
                    f"worker {hello.worker.worker_id} has no role that this router knows",
                    expected="PREFILL or DECODE",
                    actual=str(hello.worker.role),
                )
            )
        return _ROLES[hello.worker.role]

    def _compare_fingerprint(self, hello: Hello) -> None:
        """Against any other worker: those in the table agree with each other."""
        others = (w for w in self._workers.values() if w.worker_id != hello.worker.worker_id)
        other = next(others, None)
        if other is None:
            return
        for name in sorted(other.fingerprint.keys() | hello.fingerprint.keys()):
            expected = other.fingerprint.get(name, "absent")
            actual = hello.fingerprint.get(name, "absent")
            if expected != actual:
                raise Refused(
                    incompatible(
                        f"{name} of worker {hello.worker.worker_id} is {actual}, "
                        f"but {expected} on {other.worker_id}; start all workers with the same "
                        "model and options",
                        expected,
                        actual,
                    )
                )


def incompatible(message: str, expected: str, actual: str) -> ApiError:
    return ApiError(ErrorCode.INCOMPATIBLE, message, expected=expected, actual=actual)
