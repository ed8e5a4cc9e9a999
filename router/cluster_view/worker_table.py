"""The workers of the cluster, as far as this router knows.

The table has no sockets, no tasks and no clock of its own. A worker is in it from its
registration until its stream ends, its lease runs out, or a newer incarnation replaces it.
"""

import json
from bisect import insort
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from baton.api.model_info import UNBOUNDED
from baton.core.errors import IncompatibleError, PeerSilentError, RequestError
from baton.core.role import ROUTED_ROLES, Role
from baton.proto.common_pb2 import DECODE, PREFILL, Hello, WorkerIdentity
from baton.proto.worker_pb2 import WorkerStatus
from baton.router.cluster_view.contexts import Contexts
from baton.router.cluster_view.worker_notes import WorkerNotes
from baton.rpc.handshake import SYNTHETIC, check_fingerprint, check_version
from baton.rpc.lease import TICKS_PER_LEASE, Lease

DEFAULT_CHUNK = 8192
"""The prompt tokens of a worker's step before it has reported them."""
_ROLES = {PREFILL: Role.PREFILL, DECODE: Role.DECODE}


class Details:
    """The part of a status that a worker tells when it changes: plan, peers, settings, channels."""

    def __init__(self, status: WorkerStatus) -> None:
        """status: the last one that had them."""
        self.status = status

    @cached_property
    def prefill_chunk(self) -> int:
        """Return the prompt tokens that a step of the worker computes at most."""
        given = self.status.settings.get("chunked_prefill_size")
        return DEFAULT_CHUNK if given is None else _number(given)

    @cached_property
    def state_grid(self) -> int:
        """Return the tokens between the depths at which prompts leave states in the worker's prefix
        cache; 0 where they leave none there, and before the worker has reported it.
        """
        settings = self.status.settings
        if settings.get("mamba_scheduler_strategy") != '"extra_buffer"':
            return 0
        if settings.get("disable_radix_cache") != "false":
            return 0
        return _number(settings.get("mamba_checkpoint_grid", "0"))


_UNTOLD = Details(WorkerStatus())


@dataclass(frozen=True)
class Worker:
    """One worker as it last reported. Its messages are never written to."""

    identity: WorkerIdentity
    role: Role
    fingerprint: Mapping[str, str]
    registration: int  # counts up in this table; the newest of a worker_id is the valid one
    status: WorkerStatus = field(default_factory=WorkerStatus)
    leaving: bool = False
    share: int | None = None  # what this router may have there; None: all, it is the only one
    routers: tuple[str, ...] = ()  # names of those with which it is registered, in order
    worker_id: str = ""  # the identity's, which protobuf makes anew at each access
    details: Details = _UNTOLD

    def __post_init__(self) -> None:
        if not self.worker_id:
            object.__setattr__(self, "worker_id", self.identity.worker_id)

    @property
    def group(self) -> int:
        """Return a decode rank's data-parallel group."""
        return self.identity.group

    @property
    def rank(self) -> int:
        """Return a decode rank's number in the cluster, which `routed_dp_rank` names."""
        return self.identity.rank

    @property
    def load(self) -> int:
        """Return the requests on the worker, of all routers."""
        return self.status.running + self.status.waiting

    @property
    def capacity(self) -> int:
        """Return the requests that the worker runs at once; 1 before it has reported that."""
        return max(self.status.max_running, 1)


@lru_cache(maxsize=1024)
def _number(setting: str) -> int:
    """Return the number of a setting. All workers' reports have the same few."""
    return int(json.loads(setting))


def id_order(worker_id: str) -> tuple[int, str]:
    """Return the sort key of a worker id, which puts `d2` before `d10`."""
    return len(worker_id), worker_id


@dataclass(frozen=True)
class Change:
    """A change of one worker.

    before: None if the worker joined. after: None if it is gone, with the `reason`.
    """

    before: Worker | None
    after: Worker | None
    reason: str = ""

    @property
    def description(self) -> str:
        """Say what has become of the worker."""
        if self.before is None:
            return "joined"
        if self.after is None:
            return f"is gone: {self.reason}"
        return "is leaving" if self.after.leaving else "takes requests again"


class WorkerTable:
    """The registered workers by id, each with a lease of `lease_s` seconds.

    `Lease` defines what counts as silence. The owner calls `tick` every `tick_s` seconds.
    """

    def __init__(
        self, lease_s: float, clock: Callable[[], float], own_context: int = UNBOUNDED
    ) -> None:
        """own_context: the model's, in tokens."""
        self._lease_s = lease_s
        self._clock = clock
        self._workers: dict[str, Worker] = {}
        self._ids: dict[Role, list[str]] = {role: [] for role in ROUTED_ROLES}  # in `id_order`
        self._leases: dict[str, Lease] = {}
        self._heard: dict[str, float] = {}  # when each reported last, on the clock
        self._lost_ranks: set[int] = set()  # ranks that were lost without leaving
        self._retired_ranks: set[int] = set()  # ranks that have left for good
        self._leaving_ranks: set[int] | None = None  # None: to be found again
        self._subscribers: list[Callable[[Change], None]] = []
        self._report_listeners: list[Callable[[Worker], None]] = []
        self._registrations = 0
        self.notes = WorkerNotes(clock)
        self.contexts = Contexts(clock, own_context)

    def subscribe(self, listener: Callable[[Change], None]) -> None:
        """Call `listener` at every join, loss and change of `leaving`."""
        self._subscribers.append(listener)

    def subscribe_reports(self, listener: Callable[[Worker], None]) -> None:
        """Call `listener` with the worker at every report, before the change that it may be."""
        self._report_listeners.append(listener)

    def workers(self, role: Role | None = None) -> list[Worker]:
        """Return a snapshot of the workers of one role, or of all roles, in `id_order`."""
        if role is not None:
            return [self._workers[worker_id] for worker_id in self._ids[role]]
        return sorted(self._workers.values(), key=lambda worker: id_order(worker.worker_id))

    @property
    def synthetic_acceptance(self) -> float:
        """The mean length by which the workers accept drafts at random, all alike; 0: they verify
        them."""
        first = next(iter(self._workers.values()), None)
        return 0.0 if first is None else float(first.fingerprint.get(SYNTHETIC, 0))

    def count(self, role: Role) -> int:
        """Return the number of workers of a role."""
        return len(self._ids[role])

    def worker(self, worker_id: str) -> Worker:
        """Return a registered worker. Raises KeyError for an id that is not registered."""
        return self._workers[worker_id]

    def find(self, worker_id: str) -> Worker | None:
        """Return a worker, or None when none is registered by that id."""
        return self._workers.get(worker_id)

    def ranks(self) -> list[int]:
        """Return the numbers of the decode ranks that stay.

        They are the registered ones, and those that were lost without leaving, which are
        started again.
        """
        here = {w.rank for w in self.workers(Role.DECODE) if not w.leaving}
        return sorted(here | (self._lost_ranks - self._retired_ranks))

    def has_left(self, rank: int) -> bool:
        """Return True if a decode rank of that number existed and has left, or is leaving."""
        if self._leaving_ranks is None:  # asked at the end of every request
            self._leaving_ranks = {w.rank for w in self.workers(Role.DECODE) if w.leaving}
        gone = rank in self._retired_ranks or rank in self._leaving_ranks
        return gone and rank not in self.ranks()

    def retire(self, ranks: Collection[int]) -> None:
        """Record that these ranks are not started again.

        One that is still registered stays until it goes. One that registers later belongs to
        the cluster again.
        """
        self._retired_ranks.update(ranks)

    def register(self, hello: Hello, context: int = 0) -> Worker:
        """Add a worker. Raises RequestError or IncompatibleError.

        context: what it tells of its own, in tokens; 0 if it does not know yet.
        """
        role = _checked_role(hello)
        self._compare_fingerprint(hello)
        before = self._workers.get(hello.worker.worker_id)
        if before is not None and before.identity.incarnation > hello.worker.incarnation:
            raise IncompatibleError(
                f"a newer start of worker {before.worker_id} is registered; stop this one",
                expected=f"incarnation {before.identity.incarnation} or later",
                actual=f"incarnation {hello.worker.incarnation}",
            )
        self.contexts.check(hello.worker.worker_id, context)
        if before is not None:
            self._remove(before, "a newer registration took its place")
        self._registrations += 1
        worker = Worker(hello.worker, role, dict(hello.fingerprint), self._registrations)
        self._workers[worker.worker_id] = worker
        insort(self._ids[role], worker.worker_id, key=id_order)
        if role is Role.DECODE:
            self._lost_ranks.discard(worker.rank)
            self._retired_ranks.discard(worker.rank)
        self._leases[worker.worker_id] = Lease(f"worker {worker.worker_id}", self._lease_s)
        self._renew(worker)
        self._publish(Change(None, worker))
        return worker

    def check_context(self, worker: Worker, tokens: int) -> None:
        """Note the context that a worker tells. Raises RequestError if others tell much more.

        A registration that is no longer the valid one has no voice: nobody would take it away.
        """
        if self._current(worker) is not None:
            self.contexts.check(worker.worker_id, tokens)

    def report(
        self,
        worker: Worker,
        status: WorkerStatus | None,
        leaving: bool,
        share: int | None = None,
        routers: Sequence[str] = (),
        *,
        same_details: bool = False,
    ) -> bool:
        """Renew the lease. Returns False if this registration is no longer the valid one.

        share, routers: see `Worker`. same_details: the status has none.
        """
        current = self._current(worker)
        if current is None:
            return False
        after = Worker(  # not `replace`, which takes as long as all the rest of a report
            current.identity,
            current.role,
            current.fingerprint,
            current.registration,
            current.status if status is None else status,
            leaving,
            share,
            tuple(routers),
            current.worker_id,
            current.details if status is None or same_details else Details(status),
        )
        self._workers[worker.worker_id] = after
        self._renew(after)
        for listener in self._report_listeners:
            listener(after)
        if after.leaving != current.leaving:
            self._publish(Change(current, after))
        return True

    def remove(self, worker: Worker, reason: str) -> None:
        """Remove a worker whose registration ended. Does nothing if it was replaced before."""
        current = self._current(worker)
        if current is not None:
            self._remove(current, reason)
            self.contexts.forget(worker.worker_id)

    def heard_s(self, worker: Worker) -> float:
        """Return the seconds since the last report of a worker that is here."""
        return self._clock() - self._heard[worker.worker_id]

    @property
    def tick_s(self) -> float:
        """Return the seconds from one `tick` to the next."""
        return self._lease_s / TICKS_PER_LEASE

    def tick(self) -> None:
        """Count one tick of silence for each worker, and drop those whose lease is over."""
        for worker in self.workers():
            try:
                self._leases[worker.worker_id].tick()
            except PeerSilentError as silent:
                self.remove(worker, str(silent))

    def _current(self, worker: Worker) -> Worker | None:
        current = self._workers.get(worker.worker_id)
        valid = current is not None and current.registration == worker.registration
        return current if valid else None

    def _renew(self, worker: Worker) -> None:
        self._leases[worker.worker_id].heard()
        self._heard[worker.worker_id] = self._clock()

    def _remove(self, worker: Worker, reason: str) -> None:
        del self._workers[worker.worker_id]
        self._ids[worker.role].remove(worker.worker_id)
        del self._leases[worker.worker_id], self._heard[worker.worker_id]
        if worker.role is Role.DECODE:
            (self._retired_ranks if worker.leaving else self._lost_ranks).add(worker.rank)
        self._publish(Change(worker, None, reason))

    def _publish(self, change: Change) -> None:
        self._leaving_ranks = None
        for listener in self._subscribers:
            listener(change)

    def _compare_fingerprint(self, hello: Hello) -> None:
        """Compare with any other worker. Those in the table agree with each other."""
        others = (w for w in self._workers.values() if w.worker_id != hello.worker.worker_id)
        other = next(others, None)
        if other is not None:
            theirs = dict(hello.fingerprint)
            check_fingerprint(other.fingerprint, theirs, other.worker_id, hello.worker.worker_id)


def _checked_role(hello: Hello) -> Role:
    check_version(hello, "this router")
    if not hello.worker.worker_id or not hello.worker.address:
        raise RequestError("Hello names no worker_id or no address")
    if hello.worker.role not in _ROLES:
        raise RequestError(
            f"worker {hello.worker.worker_id} has no role that this router knows",
            expected="PREFILL or DECODE",
            actual=str(hello.worker.role),
        )
    return _ROLES[hello.worker.role]
