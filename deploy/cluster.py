"""A router and its workers on Ray, from start to stop."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from baton.decode.actor import DecodeActor
from baton.deploy import ray_start
from baton.deploy.actors import Actor, WorkerActor
from baton.deploy.cluster_config import ClusterConfig
from baton.deploy.errors import StartError
from baton.deploy.host import ReportingServed
from baton.deploy.preflight import check_fits
from baton.deploy.progress import Silent, StartProgress
from baton.deploy.router_client import RouterClient
from baton.deploy.start_watch import wait_for_all
from baton.deploy.wiring import Wiring
from baton.prefill.actor import PrefillActor
from baton.router.actor import RouterActor
from baton.worker.config import Role
from baton.worker.started import Started

_READY_S = 30.0  # for the router to hear of all workers, once they serve
_STOP_MARGIN_S = 5.0
_ROUTER = "router"
_KINDS: dict[Role, type[ReportingServed]] = {
    Role.PREFILL: PrefillActor,
    Role.DECODE: DecodeActor,
}


class Cluster:
    """`with Cluster(config) as cluster:` is up inside and gone after, whatever happens."""

    def __init__(self, config: ClusterConfig, progress: StartProgress | None = None) -> None:
        """Raises StartError where a port cannot be used, or memory does not suffice."""
        self.config = config
        self.seconds: dict[str, float] = {}  # how long each part of the start took
        self.workers: dict[str, Started] = {}  # as they first started, by worker_id
        self._progress = progress or Silent()
        self._wiring = Wiring.settle(config)
        if config.ray_address is None and config.engine.device == "cpu":  # what we can see
            for worker_id, role in config.worker_ids.items():
                check_fits(worker_id, self._wiring.worker(worker_id, role).engine)
        self._actors: list[Actor] = []

    @property
    def http_url(self) -> str:
        return f"http://{self._wiring.http_address}"

    @property
    def grpc_address(self) -> str:
        return self._wiring.grpc_address

    @property
    def router(self) -> RouterClient:
        return RouterClient(self.http_url)

    def up(self) -> None:
        """Serving when it returns. Raises StartError; then call `down`."""
        with self._timed("Ray"):
            self._progress.update("Ray", "starting", 0.0)
            ray_start.connect(self._ray_config())
        self._progress.done("Ray", f"ready after {self.seconds['Ray']:.1f} s")
        with self._timed("workers"):
            self._make_actors()
            started = wait_for_all(self._actors, self._progress, self.config.start_deadline_s)
            self.workers = {name: s for name, s in started.items() if name != _ROUTER}
        with self._timed("registration"):
            self._wait_until_ready()

    def down(self, drain_s: float | None) -> None:
        """Turn new requests away, let those under way end for `drain_s`, then end everything.
        None: end everything now."""
        try:
            if drain_s is not None:
                self._drain(drain_s)
            for actor in self._actors:
                actor.end()
            self._actors.clear()
        finally:
            ray_start.leave()

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
        cpus = 1 + self._wiring.threads * len(self.config.worker_ids)
        return ray_start.RayConfig(self.config.ray_address, cpus)

    def _make_actors(self) -> None:
        """All at once: the router's addresses are settled, so nobody waits for anybody."""
        wiring = self._wiring
        self._actors.append(Actor(_ROUTER, RouterActor, wiring.router(), cpus=1))
        for worker_id, role in self.config.worker_ids.items():
            options = wiring.worker(worker_id, role)
            self._actors.append(WorkerActor(worker_id, _KINDS[role], options, wiring.threads))

    def _wait_until_ready(self) -> None:
        until = time.monotonic() + _READY_S
        while True:
            workers = self.router.server_info()["workers"]
            ready = {worker["worker_id"] for worker in workers if worker["ready"]}
            missing = set(self.workers) - ready
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
        for actors in (self._actors[:1], self._actors[1:]):
            until = time.monotonic() + drain_s + _STOP_MARGIN_S
            for call in [actor.stop(drain_s) for actor in actors]:
                call.ready(max(0.0, until - time.monotonic()))

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.seconds[part] = time.monotonic() - began
