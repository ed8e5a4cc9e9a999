"""Routers and their workers on Ray, from start to stop."""

import itertools
import os
import signal
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from baton.core.role import Role
from baton.core.supervised import ProcessSupervisor
from baton.deploy.client.router_client import RouterClient
from baton.deploy.client.router_options import RouterAddress
from baton.deploy.cluster import actors, ray_start
from baton.deploy.cluster.change_lock import ChangeLock
from baton.deploy.cluster.config import ClusterConfig
from baton.deploy.cluster.fleet import Fleet
from baton.deploy.cluster.joined_ray import settled
from baton.deploy.cluster.kept_listener import keep_listener
from baton.deploy.cluster.member import Member
from baton.deploy.cluster.preflight import settle_channel, settle_state_return
from baton.deploy.cluster.ray_home import JoinedRay, OwnRay, RayAround, ray_for
from baton.deploy.cluster.ray_lost import RayWatch
from baton.deploy.cluster.record import ClusterRecord, Detached
from baton.deploy.cluster.renewal import Files, renewing
from baton.deploy.cluster.rolling import Rolling
from baton.deploy.cluster.routers import Routers
from baton.deploy.cluster.start_watch import wait_for_all
from baton.deploy.cluster.wiring import OPERATOR, Wiring
from baton.deploy.errors import ScaleError
from baton.deploy.messages.start_progress import Silent, StartProgress
from baton.deploy.process.ports import PortKeeper
from baton.rpc.file_watcher import FileWatcher
from baton.rpc.identity import Identity, ProcessRole
from baton.rpc.revoked import REVOKED, read_revoked
from baton.worker.runtime import WorkerStarted

_TAKE_OVER_S = 10.0  # for the answers of those that serve; the rest are being restarted


class Cluster:
    """A cluster that runs inside `with Cluster(config) as cluster:` and has ended after it."""

    def __init__(
        self,
        config: ClusterConfig,
        progress: StartProgress | None = None,
        detached: Detached | None = None,
        owner: ProcessSupervisor | None = None,
        ray_watch: RayWatch | None = None,
    ) -> None:
        """Reserve ports and memory, and join the Ray that the config names.

        detached: None for a cluster that ends with this process. owner: of the threads of this
        process that run beside their makers; None where it has no other. ray_watch: begun once
        Ray is connected. Raises StartError if a port is taken, memory does not suffice, or that
        Ray does not answer.
        """
        self.seconds: dict[str, float] = {}  # duration of each part of the start
        self._progress = progress or Silent()
        self._detached = detached
        self._owner = owner or ProcessSupervisor()
        # Of the supervisor's last life, which the cluster has survived.
        self._record = record = detached.store.read() if detached else None
        self._kept = ExitStack()  # the socket that outlives the router
        with ExitStack() as held:
            held.enter_context(self._kept)
            joined = None if detached else held.enter_context(ray_for(config, ray_watch))
            self._ray = joined or RayAround()
            # The socket that outlived the router has ended with the process that kept it.
            taken_over = replace(record.wiring, listener=None) if record else None
            self.wiring = taken_over or self._settle(config, held)
            # In its first life this process has reserved the ports itself.
            self._ports = PortKeeper(self.wiring.listening if record else ())
            held.callback(self._ports.close)
            self.config = self.wiring.config
            budgets = None if record is None else record.budgets
            self._fleet = Fleet(self.wiring, detached=detached is not None, budgets=budgets)
            self.routers = Routers(self.wiring, detached=detached is not None)
            self._held = held.pop_all()
        self._renewing = ExitStack()  # of certificates on other hosts
        self._changing = ChangeLock()
        deadline_s = self.config.start_deadline_s
        self.rolling = Rolling(self._fleet, self.routers, self._changing, deadline_s)
        path = self.operator_folder / REVOKED
        self._revoked = FileWatcher("the list of revoked processes", (path,),
                                 lambda: read_revoked(path))  # fmt: skip

    @property
    def http_url(self) -> str:
        """Return the first router's URL."""
        return self.routers.http_urls[0]

    @property
    def grpc_address(self) -> str:
        """Return the first router's address for gRPC."""
        return self.routers.grpc_addresses[0]

    @property
    def operator_folder(self) -> Path:
        """Return the folder of the operator's certificate, by which its holder calls workers."""
        return self.wiring.credentials.folder_of(*OPERATOR)

    @property
    def address(self) -> RouterAddress:
        """Return the first router's URL, the operator's key and the trust in its certificate."""
        return RouterAddress(self.http_url, self.wiring.operator_key, self.routers.trust)

    @property
    def router(self) -> RouterClient:
        """Return a client of the first router that answers; of the very first if none does."""
        return self.routers.any_client()

    @property
    def workers(self) -> dict[str, WorkerStarted]:
        """Return the present members as they first started, by worker_id."""
        return self._fleet.started

    @property
    def revoked(self) -> frozenset[str]:
        """Return the names of processes whose certificates were revoked; of workers, their ids."""
        found = map(Identity.parse, self._revoked.get())
        return frozenset(each.name for each in found if each is not None)

    @property
    def logs(self) -> Path:
        """Return the folder of the logs of all processes on this machine, once they have started.

        That of a router or worker is worker-*-PID.err.
        """
        return ray_start.logs_folder()

    @property
    def handles(self) -> tuple[actors.ActorHandle, ...]:
        """Return the actors of routers and workers, those that start or leave too."""
        return (*self.routers.actors, *self._fleet.actors)

    def members(self, role: Role) -> list[Member]:
        """Return the present members of one role, ordered by number."""
        return self._fleet.members(role)

    def up(self) -> None:
        """Start everything and return when the cluster serves.

        Raises StartError; the caller must then call `down`.
        """
        if isinstance(self._ray, OwnRay):
            self._connect("starting")
        elif isinstance(self.config.authority, Path) or self.config.routers_move:
            self._renewing.enter_context(
                renewing(partial(_copied, self._fleet, self.routers), self._owner)
            )
        if self._record is None or not self._record.serves:
            self._start(self.config.members)
        else:
            self._take_over(self._record.members)

    def scale(
        self, role: Role, count: int, drain_s: float, progress: StartProgress | None = None
    ) -> None:
        """Add or remove workers until there are `count` of `role`, while all others serve.

        The workers with the highest numbers leave. They accept no new requests and have `drain_s`
        seconds for running ones; the rest continue on other workers.

        Raises ScaleError, or StartError if a new worker does not start; then no worker has joined.
        """
        if count < 1:
            raise ScaleError(f"{role}={count}; a cluster needs at least one of each role")
        with self._changing.held("growing or shrinking"):
            members = self._fleet.members(role)
            taken = {member.number for member in members}
            free = (number for number in itertools.count() if number not in taken)
            joining = [Member(role, next(free)) for _ in range(count - len(members))]
            if joining:
                self._join(joining, progress or Silent())
            elif leaving := members[count:]:
                self._leave(leaving, drain_s, progress or Silent())

    def reconfigure(
        self,
        config: ClusterConfig,
        roles: Collection[ProcessRole],
        drain_s: float,
        progress: StartProgress | None = None,
    ) -> list[str]:
        """Give routers, workers, and workers to come another config, and restart those of `roles`,
        one after another, while all others serve. Return their names.

        config: differs only in what a restart can change; how many workers there are stays. Raises
        ScaleError or StartError; then all have again what they had before.
        """
        here = self.config
        config = replace(config, prefill=here.prefill, decode=here.decode)
        before, after = self.wiring, replace(self.wiring, config=config)
        done = self.rolling.reconfigure(before, after, roles, drain_s, progress or Silent())
        self.wiring, self.config = after, config
        self._save(self._fleet.all_members)
        return done

    def look_after(self) -> None:
        """Keep the routers' ports for them. Raises RayLostError if a Ray of our own has lost a
        process that it cannot replace.
        """
        self._ray.check()
        self._ports.keep()

    def down(self, drain_s: float | None) -> None:
        """Refuse new requests, give running ones `drain_s` seconds, then end everything.

        drain_s: None ends everything now.
        """
        self._renewing.close()  # it calls Ray
        self._kept.close()  # whoever comes now is refused
        try:
            if self._ray.kill_if_lost():
                return
            if drain_s is not None:
                # The routers first, so that requests end while their workers still serve.
                self.routers.drain(drain_s)
                self._fleet.drain_all(drain_s)
            self._fleet.leave_all()
            self.routers.end()
        finally:
            self._ray.leave()
            self._held.close()

    def kill(self, worker_id: str) -> None:
        """Kill a worker's process as a crash would. Ray restarts it."""
        os.kill(self.pid(worker_id), signal.SIGKILL)

    def pid(self, worker_id: str) -> int:
        """Return the process id that the router knows for a worker. Raises KeyError for an unknown
        one.
        """
        pids = {w["worker_id"]: int(w["pid"]) for w in self.router.server_info()["workers"]}
        return pids[worker_id]

    def __enter__(self) -> Self:
        try:
            self.up()
        except BaseException:  # including Ctrl-C: no process may stay behind
            self.down(drain_s=None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.down(self.config.drain_s if kind is None else None)

    def _settle(self, config: ClusterConfig, held: ExitStack) -> Wiring:
        """Choose all that this machine, or the Ray that it joins, has room for. Raises StartError.

        held: keeps the ports reserved.
        """
        returns, why = settle_state_return(config)
        if why:
            self._progress.done("state return", f"{returns.value}: {why}")
        config = replace(config, state_return=returns)
        if config.ray_address is not None:
            if isinstance(self._ray, JoinedRay):
                held.callback(self._ray.leave)
                self._connect("joining")
            config = settled(config)
        else:
            channel, why = settle_channel(config)
            if why:
                self._progress.done("channel", f"{channel}: {why}")
            config = replace(config, channel=channel)
        folder = None if self._detached is None else self._detached.folder
        wiring = Wiring.resolve_options(config, held, folder)
        if config.routers > 1 or config.routers_move:
            return wiring
        host, port = config.router.host, wiring.ports[0].http
        return replace(wiring, listener=keep_listener(host, port, self._owner, self._kept))

    def _connect(self, phase: str) -> None:
        with _timed(self.seconds, "Ray"):
            self._progress.update("Ray", phase, 0.0)
            self._ray.connect()
        self._progress.done("Ray", f"ready after {self.seconds['Ray']:.1f} s")

    def _start(self, members: Sequence[Member]) -> None:
        """Start routers and workers, and return when all serve."""
        self._save(members, serves=False)
        with _timed(self.seconds, "workers"):
            # All start at once: the routers' addresses are settled, so no worker waits for them.
            nodes = self._fleet.find_room(members, self.routers.wishes)
            # Routers of a supervisor that died while it started them run already.
            routers = self.routers.begin(nodes, anew=self._record is None)
            starting = [*routers, *self._fleet.begin(members, nodes)]
            started = self._wait_for(starting, self._progress)
            self.routers.pids = {each.name: started.pop(each.name).pid for each in routers}
            self.workers.update(started)
        with _timed(self.seconds, "registration"):
            self.routers.wait_until_ready(self.workers)
        self._save(members)

    def _take_over(self, members: Sequence[Member]) -> None:
        """Find routers and workers, which serve or are being restarted, and do not disturb them."""
        with _timed(self.seconds, "taking over"):
            routers = self.routers.begin({}, anew=False)
            workers = self._fleet.begin(members, {})
            actors.end_strangers({each.name for each in (*routers, *workers)})
            started = actors.started_of([*routers, *workers], _TAKE_OVER_S)
            names = {each.name for each in routers}
            self.routers.pids = {name: each.pid for name, each in started.items() if name in names}
            self.workers.update({k: each for k, each in started.items() if k not in names})

    def _save(self, members: Iterable[Member], *, serves: bool = True) -> None:
        """Record who belongs to the cluster, for the supervisor's next life."""
        if self._detached is not None:
            budgets = self._fleet.budgets
            record = ClusterRecord(self.wiring, tuple(members), budgets, serves)
            self._detached.store.write(record)

    def _join(self, joining: Sequence[Member], progress: StartProgress) -> None:
        starting = self._fleet.join(joining)
        try:
            self._save(self._fleet.all_members)
            started = self._wait_for(starting, progress)
            self.routers.wait_until_ready(started)
        except BaseException:
            self._fleet.leave(joining)
            self._save(self._fleet.all_members)
            raise
        self.workers.update(started)

    def _leave(self, leaving: Sequence[Member], drain_s: float, progress: StartProgress) -> None:
        self._save(self._fleet.all_members.difference(leaving))
        for member in leaving:
            progress.update(member.worker_id, f"draining, for {drain_s:g} s at most", 0.0)
        ranks = [member.number for member in leaving if member.role is Role.DECODE]
        # Before the drain: the routers stop waiting for ranks that have died already. After it:
        # for ranks that ended without notifying the router.
        self.routers.retire(ranks)
        self._fleet.drain(leaving, drain_s)
        self._fleet.leave(leaving)
        self.routers.retire(ranks)
        for member in leaving:
            progress.done(member.worker_id, "has left")

    def _wait_for(
        self, starting: Sequence[actors.ActorHandle], progress: StartProgress
    ) -> dict[str, WorkerStarted]:
        shared = self.config.ray_address is not None
        return wait_for_all(starting, progress, self.config.start_deadline_s, shared=shared)


@contextmanager
def _timed(seconds: dict[str, float], part: str) -> Iterator[None]:
    """Note how long a part takes, in seconds."""
    began = time.monotonic()
    yield
    seconds[part] = time.monotonic() - began


def _copied(fleet: Fleet, routers: Routers) -> Files:
    """Return how to read what may change on this machine, and has copies on other hosts."""
    return {**fleet.files(), **routers.files()}
