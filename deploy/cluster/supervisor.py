"""Whoever runs a cluster: it starts it, takes requests for it, and ends it."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from baton.core.supervised import ProcessSupervisor
from baton.deploy.cluster.cluster import Cluster
from baton.deploy.cluster.config import ClusterConfig
from baton.deploy.cluster.control_handlers import control_handlers
from baton.deploy.cluster.member_watch import MemberWatch
from baton.deploy.cluster.ray_lost import RayWatch
from baton.deploy.cluster.record import Detached
from baton.deploy.cluster.running_changes import RunningChanges
from baton.deploy.cluster.start_reports import StartReports
from baton.deploy.errors import ControlError
from baton.deploy.files.state_file import ClusterState, control_path, published
from baton.deploy.messages.control import DESCRIBE, STOP, Handler, Handlers, listening
from baton.deploy.messages.start_progress import StartProgress

_LOOK_S = 0.5


class Supervisor:
    """One cluster and the requests for it, in `baton serve` or in an actor of its own.

    `running` starts the cluster; `watch` returns when a request has asked for its end.
    """

    def __init__(
        self,
        config: ClusterConfig,
        folder: Path,
        progress: StartProgress,
        owner: ProcessSupervisor,
        detached: Detached | None = None,
        process: tuple[int, float] | None = None,
        ray_watch: RayWatch | None = None,
        more_handlers: Callable[[Cluster], Handlers] = lambda cluster: {},
    ) -> None:
        """Reserve ports and memory. Raises StartError.

        folder: of the state file and the control socket. owner: of the threads of this process
        that run beside their makers. process: pid and creation time of the one
        with which the cluster ends; see `ClusterState`. ray_watch: as for `Cluster`.
        more_handlers: of requests that need what this room does not import.
        """
        self.reports = StartReports(progress)
        # Its routers pass on requests from other machines.
        router = replace(config.router, control=control_path(folder))
        config = replace(config, router=router)
        self.cluster = Cluster(config, self.reports, detached, owner, ray_watch)
        self._folder = folder
        self._owner = owner
        self._process = process or (None, None)
        self._phase = "starting"
        self._stop = threading.Event()
        self._changes = RunningChanges()
        self._changing = {**control_handlers(self.cluster), **more_handlers(self.cluster)}
        self._members = MemberWatch(self.cluster, self._changes)

    @contextmanager
    def running(self) -> Iterator[Cluster]:
        """Start the cluster, take requests for it, and end it with the context.

        Raises DeployError, or StopWanted if a request ends the start.
        """
        with ExitStack() as stack:
            stack.enter_context(
                listening(control_path(self._folder), self._handlers(), self._owner)
            )
            self._file = stack.enter_context(published(self._folder, self._state()))
            stack.callback(self._set_phase, "stopped")
            cluster = stack.enter_context(self.cluster)
            stack.callback(self._set_phase, "stopping")
            self._set_phase("serving")
            self._tell_addresses()
            if not self._stop.is_set():
                self._file.serves()
            yield cluster

    def watch(self, tell: Callable[[str], None]) -> None:
        """Report changes of the members until a request asks for the end.

        tell: takes a line for the operator. Raises RayLostError.
        """
        while not self._stop.wait(_LOOK_S):
            self.cluster.look_after()
            self._tell_addresses()
            for line in (*self._members.changes(), *self._members.start_spoilt_again()):
                tell(f"{time.strftime('%H:%M:%S')}  {line}")

    def stop(self) -> None:
        """Give up the start, or let `watch` return."""
        self.reports.give_up()
        self._stop.set()

    def _tell_addresses(self) -> None:
        """Let other commands find the routers where they are now."""
        self._file.move(self.cluster.routers.http_urls, self.cluster.grpc_address)

    def _handlers(self) -> Handlers:
        served = {
            name: self._once_serving(name, handler) for name, handler in self._changing.items()
        }
        return {**served, STOP: self._handle_stop, DESCRIBE: self._handle_describe}

    def _once_serving(self, name: str, handler: Handler) -> Handler:
        def handle(
            arguments: Mapping[str, object], progress: StartProgress
        ) -> Mapping[str, object]:
            if self._phase != "serving":
                raise ControlError(f"the cluster is {self._phase}; {name} needs one that serves")
            with self._changes.kept(name, progress) as kept:
                return handler(arguments, kept)

        return handle

    def _handle_stop(
        self, arguments: Mapping[str, object], progress: StartProgress
    ) -> Mapping[str, object]:
        """Begin to stop; the end of the cluster is the end of this process or its actor."""
        self.stop()
        return {"drain_s": self.cluster.config.drain_s}

    def _handle_describe(
        self, arguments: Mapping[str, object], progress: StartProgress
    ) -> Mapping[str, object]:
        cluster = self.cluster
        return {
            "name": cluster.config.name,
            "phase": self._phase,
            "http_url": cluster.http_url,
            "parts": self.reports.parts,
            "members": self._members.describe(),
            "changes": self._changes.describe(),
        }

    def _state(self) -> ClusterState:
        cluster = self.cluster
        tls = cluster.config.router.client_tls
        return ClusterState(
            name=cluster.config.name,
            pid=self._process[0],
            pid_started=self._process[1],
            started=time.time(),
            model=str(cluster.config.engine.model),
            http_urls=cluster.routers.http_urls,
            grpc_address=cluster.grpc_address,
            control=str(control_path(self._folder)),
            certificate=None if tls is None else str(tls.certificate),
        )

    def _set_phase(self, phase: str) -> None:
        self._phase = phase
