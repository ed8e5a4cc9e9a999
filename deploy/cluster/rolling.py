"""Changes of single processes while the cluster serves: rolling restarts and drains."""

import time
from collections.abc import Collection, Mapping

from baton.core.role import ROUTED_ROLES
from baton.deploy.cluster.actor_process import LifeEnd
from baton.deploy.cluster.actors import WorkerHandle
from baton.deploy.cluster.change_lock import ChangeLock
from baton.deploy.cluster.fleet import STOP_MARGIN_S, Fleet
from baton.deploy.cluster.life_ends import NO_START
from baton.deploy.cluster.member import Member
from baton.deploy.cluster.routers import Routers
from baton.deploy.cluster.wiring import Wiring
from baton.deploy.errors import ScaleError, StartError
from baton.deploy.messages.start_progress import StartProgress
from baton.rpc.identity import ProcessRole

_LOOK_S = 2.0  # between two looks for a process that could not start
_UNDRAIN_S = 30.0  # for a worker to register again


class Rolling:
    """Restarts and drains of the members of one cluster."""

    def __init__(
        self, fleet: Fleet, routers: Routers, lock: ChangeLock, start_deadline_s: float
    ) -> None:
        """start_deadline_s: for a restarted process to serve again."""
        self._fleet = fleet
        self._routers = routers
        self._lock = lock
        self._start_deadline_s = start_deadline_s
        self._draining = ""  # the worker of a drain under way

    def restart(
        self, roles: Collection[ProcessRole], drain_s: float, progress: StartProgress
    ) -> list[str]:
        """Restart the processes of these roles, one after another; return their names.

        Each refuses new requests, has `drain_s` seconds for running ones, and ends. Other workers
        continue what a worker leaves behind. The next one is restarted once every router reaches
        this one again. Raises ScaleError or StartError; then the others stay as they are.
        """
        begun: list[str] = []
        with self._lock.held("a rolling restart"):
            self._restart_workers(roles, drain_s, progress, begun)
            self._restart_routers(roles, drain_s, progress, begun)
        return begun

    def reconfigure(
        self,
        before: Wiring,
        after: Wiring,
        roles: Collection[ProcessRole],
        drain_s: float,
        progress: StartProgress,
    ) -> list[str]:
        """Give routers and workers what differs in another wiring, and restart those of `roles`, as
        `restart` does.

        Raises StartError or ScaleError where one does not start with that; then all have again what
        they had before, and those that had been restarted have been so once more.
        """
        begun: list[str] = []
        with self._lock.held("a change of options"):
            self._adopt(after)
            try:
                self._restart_workers(roles, drain_s, progress, begun)
                self._restart_routers(roles, drain_s, progress, begun)
            except (StartError, ScaleError) as err:
                self._adopt(before)
                self._restart_again(begun, drain_s, progress)
                raise StartError(f"{err}. The options are again those of before") from err
        return begun

    def drain(self, worker_id: str, drain_s: float, progress: StartProgress) -> None:
        """Make a worker refuse new requests, give running ones `drain_s` seconds, and leave the
        rest to other workers. It takes nothing until `undrain` or a restart of its process.

        Raises ScaleError for an unknown worker, or the last of its role that takes requests.
        """
        with self._lock.held(f"draining {worker_id}"):
            member, actor = self._fleet.find(worker_id)
            self._check_others(member)
            progress.update(worker_id, f"draining, for {drain_s:g} s at most", 0.0)
            drained = actor.drain(drain_s)
            self._draining = worker_id
            try:
                drained.result(drain_s + STOP_MARGIN_S)
                if not self._draining:
                    raise ScaleError(f"{worker_id} takes requests again: its drain was undone")
            finally:
                self._draining = ""
            progress.done(worker_id, "takes no requests until `baton drain --undo` or a restart")

    def undrain(self, worker_id: str, progress: StartProgress) -> None:
        """Let a drained worker take requests again, or one that is being drained keep those that it
        has. Raises ScaleError or StartError.
        """
        if worker_id == self._draining:  # whoever drains it holds the lock
            self._draining = ""
            self._return(worker_id, progress)
            return
        with self._lock.held(f"the return of {worker_id}"):
            self._return(worker_id, progress)

    def _return(self, worker_id: str, progress: StartProgress) -> None:
        _, actor = self._fleet.find(worker_id)
        actor.undrain().result(STOP_MARGIN_S)
        self._routers.wait_until_ready([worker_id], _UNDRAIN_S)
        progress.done(worker_id, "takes requests again")

    def check(self, wiring: Wiring) -> None:
        """Raise StartError if the members cannot have what differs in another wiring."""
        self._fleet.check(wiring)

    def _adopt(self, wiring: Wiring) -> None:
        self._fleet.adopt(wiring)
        self._routers.adopt(wiring)

    def _restart_workers(
        self,
        roles: Collection[ProcessRole],
        drain_s: float,
        progress: StartProgress,
        begun: list[str],
    ) -> None:
        """begun: takes the name of each worker before its restart."""
        for role in ROUTED_ROLES:
            for member in self._fleet.members(role) if ProcessRole(role) in roles else ():
                begun.append(member.worker_id)
                self._restart_worker(member.worker_id, drain_s, progress)

    def _restart_routers(
        self,
        roles: Collection[ProcessRole],
        drain_s: float,
        progress: StartProgress,
        begun: list[str],
    ) -> None:
        """begun: takes the names of the routers before their restart."""
        if ProcessRole.ROUTER in roles:
            begun += self._routers.names
            workers = list(self._fleet.started)
            self._routers.restart(workers, drain_s, self._start_deadline_s, progress)

    def _restart_again(
        self, names: Collection[str], drain_s: float, progress: StartProgress
    ) -> None:
        """Restart these once more: the last of them does not serve."""
        for name in reversed([each for each in names if each not in self._routers.names]):
            self._restart_worker(name, drain_s, progress)
        if not set(self._routers.names).isdisjoint(names):
            self._restart_routers({ProcessRole.ROUTER}, drain_s, progress, [])

    def _restart_worker(self, name: str, drain_s: float, progress: StartProgress) -> None:
        actor: WorkerHandle = self._fleet.find(name)[1]
        before = _incarnations(self._routers)
        progress.update(name, f"draining, for {drain_s:g} s at most", 0.0)
        actor.stop(drain_s).ready(drain_s + STOP_MARGIN_S)
        progress.update(name, "starts again", 0.5)
        began = time.monotonic()
        actor.restart()
        self._wait_for_start(actor, before.get(name, 0) + 1, actor.last_end())
        progress.done(name, f"serves again after {time.monotonic() - began:.1f} s")

    def _wait_for_start(self, actor: WorkerHandle, incarnation: int, end: LifeEnd | None) -> None:
        """Wait until routers reach this incarnation of a worker, or a later one.

        end: that of its process's last life that recorded one. Raises StartError at the deadline,
        and once two lives have ended because they could not start.
        """
        until, failed = time.monotonic() + self._start_deadline_s, set[LifeEnd]()
        while True:
            wait_s = max(0.0, min(_LOOK_S, until - time.monotonic()))
            try:
                self._routers.wait_until_ready([actor.name], wait_s, {actor.name: incarnation})
                return
            except StartError:
                now = actor.last_end()
                if now is not None and now != end and now.reason.startswith(NO_START):
                    failed.add(now)
                    if len(failed) > 1:
                        raise StartError(f"{actor.name}: {now.reason}") from None
                if time.monotonic() >= until:
                    raise

    def _check_others(self, member: Member) -> None:
        """Raise ScaleError if no other worker of the member's role takes requests."""
        workers = self._routers.any_client().server_info()["workers"]
        if not any(
            worker["ready"]
            for worker in workers
            if worker["role"] == member.role.value and worker["worker_id"] != member.worker_id
        ):
            raise ScaleError(
                f"no other {member.role.value} worker takes requests, so nothing would be served "
                f"without {member.worker_id}; `baton scale {member.role.value}="
                f"{len(self._fleet.members(member.role)) + 1}` adds one"
            )


def _incarnations(routers: Routers) -> Mapping[str, int]:
    workers = routers.any_client().server_info()["workers"]
    return {worker["worker_id"]: int(worker["incarnation"]) for worker in workers}
