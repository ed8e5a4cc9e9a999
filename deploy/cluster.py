"""A router and its workers on Ray, from start to stop."""

import itertools
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Self

from baton.deploy import actors, ray_start
from baton.deploy.cluster_config import ClusterConfig
from baton.deploy.errors import ScaleError, StartError
from baton.deploy.fleet import STOP_MARGIN_S, Fleet
from baton.deploy.member import Member
from baton.deploy.progress import Silent, StartProgress
from baton.deploy.router_client import RouterClient
from baton.deploy.start_watch import wait_for_all
from baton.deploy.wiring import Wiring
from baton.router.actor import RouterActor
from baton.worker.config import Role
from baton.worker.started import Started

_READY_S = 30.0  # for the router to hear of all workers, once they serve
_TOLD_S = 5.0
_ROUTER = "router"


class Cluster:
    """`with Cluster(config) as cluster:` is up inside and gone after, whatever happens."""

    def __init__(self, config: ClusterConfig, progress: StartProgress | None = None) -> None:
        """Raises StartError where a port cannot be used, or memory does not suffice."""
        self.config = config
        self.seconds: dict[str, float] = {}  # how long each part of the start took
        self._progress = progress or Silent()
        with ExitStack() as held:
            self._wiring = Wiring.settle(config, held)
            self._fleet = Fleet(self._wiring)
            self._ports = held.pop_all()
        self._router: actors.RouterActor | None = None
        self._scaling = threading.Lock()

    @property
    def http_url(self) -> str:
        return f"http://{self._wiring.http_address}"

    @property
    def grpc_address(self) -> str:
        return self._wiring.grpc_address

    @property
    def router(self) -> RouterClient:
        return RouterClient(self.http_url)

    @property
    def workers(self) -> dict[str, Started]:
        """Those that should be there, as they first started, by worker_id."""
        return self._fleet.started

    def members(self, role: Role) -> list[Member]:
        """Those of one role that should be there, in the order of their numbers."""
        return self._fleet.members(role)

    def up(self) -> None:
        """Serving when it returns. Raises StartError; then call `down`."""
        with self._timed("Ray"):
            self._progress.update("Ray", "starting", 0.0)
            ray_start.connect(self._ray_config())
        self._progress.done("Ray", f"ready after {self.seconds['Ray']:.1f} s")
        with self._timed("workers"):
            # All at once: the router's addresses are settled, so nobody waits for anybody.
            self._router = actors.RouterActor(_ROUTER, RouterActor, self._wiring.router(), cpus=1)
            starting = [self._router, *self._fleet.begin()]
            started = self._wait_for(starting, self._progress)
            self.workers.update({name: s for name, s in started.items() if name != _ROUTER})
        with self._timed("registration"):
            self._wait_until_ready(self.workers)

    def scale(
        self, role: Role, count: int, drain_s: float, progress: StartProgress | None = None
    ) -> None:
        """Let workers join or leave until there are `count` of `role`, while all others serve.

        Those that leave are the last by number. They take nothing new, and what they have may end
        for `drain_s`; what has not ended then goes on elsewhere. Raises ScaleError, and StartError
        where one that joins does not start; then nobody has joined.
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

    def down(self, drain_s: float | None) -> None:
        """Turn new requests away, let those under way end for `drain_s`, then end everything.
        None: end everything now."""
        try:
            if drain_s is not None:
                self._drain(drain_s)
            self._fleet.leave_all()
            if self._router is not None:
                self._router.end()
                self._router = None
        finally:
            ray_start.leave()
            self._ports.close()

    def kill(self, worker_id: str) -> None:
        """End its process as a crash would; Ray starts it again."""
        os.kill(self.pid(worker_id), signal.SIGKILL)

    def pid(self, worker_id: str) -> int:
        """Of the life that the router knows. Raises KeyError for one that it does not."""
        pids = {w["worker_id"]: int(w["pid"]) for w in self.router.server_info()["workers"]}
        return pids[worker_id]

    def __enter__(self) -> Self:
        try:
            self.up()
        except BaseException:  # Ctrl-C too: no process may stay behind
            self.down(drain_s=None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.down(self.config.drain_s if kind is None else None)

    def _ray_config(self) -> ray_start.RayConfig:
        cpus = 1 + self._wiring.threads * len(self.config.members)
        return ray_start.RayConfig(self.config.ray_address, cpus)

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
        # Those that had died are not waited for from now on; the others, should they go without a
        # word, from their end on.
        self._retire(leaving)
        self._fleet.drain(leaving, drain_s)
        self._fleet.leave(leaving)
        self._retire(leaving)
        for member in leaving:
            progress.done(member.worker_id, "has left")

    def _wait_for(
        self, starting: Sequence[actors.Actor], progress: StartProgress
    ) -> dict[str, Started]:
        shared = self.config.ray_address is not None
        return wait_for_all(starting, progress, self.config.start_deadline_s, shared=shared)

    def _retire(self, leaving: Sequence[Member]) -> None:
        """Tell the router. One that does not answer is gone, and with it what it waited for."""
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
        """The router first, so that requests end while their workers still serve."""
        if self._router is not None:
            self._router.stop(drain_s).ready(drain_s + STOP_MARGIN_S)
        self._fleet.drain_all(drain_s)

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.seconds[part] = time.monotonic() - began
