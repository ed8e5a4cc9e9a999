"""A router and its workers on Ray, from start to stop."""

import itertools
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from baton.core.role import Role
from baton.deploy.client.owned_folder import owned_folder
from baton.deploy.client.router_client import RouterClient
from baton.deploy.client.router_options import RouterAddress
from baton.deploy.client.trust import PinnedCertificate
from baton.deploy.cluster import actors, ray_start
from baton.deploy.cluster.config import ClusterConfig
from baton.deploy.cluster.fleet import STOP_MARGIN_S, Fleet
from baton.deploy.cluster.member import Member
from baton.deploy.cluster.preflight import settle_channel
from baton.deploy.cluster.ray_processes import RayProcesses
from baton.deploy.cluster.start_progress import Silent, StartProgress
from baton.deploy.cluster.start_watch import wait_for_all
from baton.deploy.cluster.wiring import OPERATOR, Wiring
from baton.deploy.errors import RayLostError, ScaleError, StartError
from baton.router.actor import RouterActor
from baton.rpc.followed import Followed
from baton.rpc.identity import Identity
from baton.rpc.revoked import REVOKED, read_revoked
from baton.worker.started import WorkerStarted

_READY_S = 30.0  # until the router has registered all workers that serve
_TOLD_S = 5.0
_ROUTER = "router"


class Cluster:
    """A cluster that runs inside `with Cluster(config) as cluster:` and has ended after it."""

    def __init__(self, config: ClusterConfig, progress: StartProgress | None = None) -> None:
        """Reserve ports and memory. Raises StartError if a port is taken or memory does not
        suffice.
        """
        self.seconds: dict[str, float] = {}  # duration of each part of the start
        self.router_pid = 0  # on its node; set by `up`
        self._progress = progress or Silent()
        with ExitStack() as held:
            self.config = config = self._with_channel(config)
            self._wiring = Wiring.settle(config, held)
            self._fleet = Fleet(self._wiring)
            self._ray = self._ray_config(held)
            self._held = held.pop_all()
        self._ray_processes: RayProcesses | None = None  # of a Ray of our own, once it runs
        self._router: actors.RouterHandle | None = None
        tls = config.router.client_tls
        self._trust = None if tls is None else PinnedCertificate(tls.certificate)
        self._scaling = threading.Lock()
        path = self.operator_folder / REVOKED
        self._revoked = Followed("the list of revoked processes", (path,),
                                 lambda: read_revoked(path))  # fmt: skip

    @property
    def http_url(self) -> str:
        scheme = "http" if self.config.router.client_tls is None else "https"
        return f"{scheme}://{self._wiring.http_address}"

    @property
    def grpc_address(self) -> str:
        return self._wiring.grpc_address

    @property
    def operator_folder(self) -> Path:
        """Return the folder of the operator's certificate, by which its holder calls workers."""
        return self._wiring.credentials.folder_of(*OPERATOR)

    @property
    def address(self) -> RouterAddress:
        """Return the router's URL, the operator's key and the trust in the router's certificate."""
        return RouterAddress(self.http_url, self._wiring.operator_key, self._trust)

    @property
    def router(self) -> RouterClient:
        address = self.address
        return RouterClient(address.url, address.api_key, address.trust)

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

    def members(self, role: Role) -> list[Member]:
        """Return the present members of one role, ordered by number."""
        return self._fleet.members(role)

    def up(self) -> None:
        """Start everything and return when the cluster serves.

        Raises StartError; the caller must then call `down`.
        """
        with self._timed("Ray"):
            self._progress.update("Ray", "starting", 0.0)
            ray_start.connect(self._ray)
        if self.config.ray_address is None:
            self._ray_processes = RayProcesses()
        self._progress.done("Ray", f"ready after {self.seconds['Ray']:.1f} s")
        with self._timed("workers"):
            # All start at once: the router's addresses are settled, so no worker waits for it.
            self._router = actors.RouterHandle(_ROUTER, RouterActor, self._wiring.router(), cpus=1)
            starting = [self._router, *self._fleet.begin()]
            started = self._wait_for(starting, self._progress)
            self.router_pid = started[_ROUTER].pid
            self.workers.update({name: s for name, s in started.items() if name != _ROUTER})
        with self._timed("registration"):
            self._wait_until_ready(self.workers)

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
        if not self._scaling.acquire(blocking=False):
            raise ScaleError("the cluster is growing or shrinking already; wait until it is done")
        try:
            members = self._fleet.members(role)
            taken = {member.number for member in members}
            free = (number for number in itertools.count() if number not in taken)
            joining = [Member(role, next(free)) for _ in range(count - len(members))]
            if joining:
                self._join(joining, progress or Silent())
            elif leaving := members[count:]:
                self._leave(leaving, drain_s, progress or Silent())
        finally:
            self._scaling.release()

    def check_ray(self) -> None:
        """Raise RayLostError if a Ray of our own has lost a process that it cannot replace."""
        lost = self._ray_processes.lost() if self._ray_processes else ""
        if lost:
            raise RayLostError(
                f"Ray's {lost} has ended, so that no worker would be started again; the cluster "
                f"ends. Ray's logs are in {self._ray.folder} until the next start: start again"
            )

    def down(self, drain_s: float | None) -> None:
        """Refuse new requests, give running ones `drain_s` seconds, then end everything.

        drain_s: None ends everything now.
        """
        try:
            if self._ray_processes and self._ray_processes.lost():
                self._ray_processes.kill()  # calls to Ray would wait for what has gone
                return
            if drain_s is not None:
                self._drain(drain_s)
            self._fleet.leave_all()
            if self._router is not None:
                self._router.end()
                self._router = None
        finally:
            ray_start.leave()
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

    def _with_channel(self, config: ClusterConfig) -> ClusterConfig:
        """Return the config with a channel for which this machine has room. Raises StartError."""
        if config.ray_address is not None:  # workers may have other machines
            return config
        channel, why = settle_channel(config)
        if why:
            self._progress.done("channel", f"{channel}: {why}")
        return replace(config, channel=channel)

    def _ray_config(self, held: ExitStack) -> ray_start.RayConfig:
        if self.config.ray_address is not None:
            return ray_start.RayConfig(self.config.ray_address)
        cpus = 1 + self._wiring.threads * len(self.config.members)
        folder = held.enter_context(owned_folder(ray_start.parent_folder()))
        return ray_start.RayConfig(None, cpus, folder)

    def _join(self, joining: Sequence[Member], progress: StartProgress) -> None:
        starting = self._fleet.join(joining)
        try:
            started = self._wait_for(starting, progress)
            self._wait_until_ready(started)
        except BaseException:
            self._fleet.leave(joining)
            raise
        self.workers.update(started)

    def _leave(self, leaving: Sequence[Member], drain_s: float, progress: StartProgress) -> None:
        for member in leaving:
            progress.update(member.worker_id, f"draining, for {drain_s:g} s at most", 0.0)
        # Before the drain: the router stops waiting for ranks that have died already. After it:
        # for ranks that ended without notifying the router.
        self._retire(leaving)
        self._fleet.drain(leaving, drain_s)
        self._fleet.leave(leaving)
        self._retire(leaving)
        for member in leaving:
            progress.done(member.worker_id, "has left")

    def _wait_for(
        self, starting: Sequence[actors.ActorHandle], progress: StartProgress
    ) -> dict[str, WorkerStarted]:
        shared = self.config.ray_address is not None
        return wait_for_all(starting, progress, self.config.start_deadline_s, shared=shared)

    def _retire(self, leaving: Sequence[Member]) -> None:
        """Tell the router which ranks leave. A router that does not answer has died and needs no
        word.
        """
        if self._router is not None:
            ranks = [member.number for member in leaving if member.role is Role.DECODE]
            self._router.retire(ranks).ready(_TOLD_S)

    def _wait_until_ready(self, names: Iterable[str]) -> None:
        until = time.monotonic() + _READY_S
        while True:
            workers = self.router.server_info()["workers"]
            ready = {worker["worker_id"] for worker in workers if worker["ready"]}
            missing = set(names) - ready
            if not missing:
                return
            if time.monotonic() > until:
                raise StartError(
                    f"{', '.join(sorted(missing))} started, but the router does not reach them "
                    f"after {_READY_S:g} s"
                )
            time.sleep(0.05)

    def _drain(self, drain_s: float) -> None:
        """Drain the router first, so that requests end while their workers still serve."""
        if self._router is not None:
            self._router.stop(drain_s).ready(drain_s + STOP_MARGIN_S)
        self._fleet.drain_all(drain_s)

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.seconds[part] = time.monotonic() - began
