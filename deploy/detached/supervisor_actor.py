"""The Ray actor that runs a detached cluster. Ray starts it again when it dies."""

import logging
import os
import shutil
import signal
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import ray

from baton.core import logs
from baton.core.errors import BatonError
from baton.core.supervised import ProcessSupervisor, child_thread
from baton.deploy.apply_settings import apply_handlers
from baton.deploy.cluster.config import ClusterConfig
from baton.deploy.cluster.record import Detached, RecordStore
from baton.deploy.cluster.start_reports import StartReport
from baton.deploy.cluster.supervisor import Supervisor
from baton.deploy.errors import StartError
from baton.deploy.files.owned_folder import kept_folder
from baton.deploy.files.state_file import folder
from baton.deploy.messages.start_progress import Silent
from baton.deploy.process.stop import StopWanted
from baton.deploy.terminal.startup_banner import StartupBanner, banner_of

NAME = "supervisor"
_HEARD_S = 30.0  # for whoever started the cluster to hear why it failed

log = logging.getLogger(__name__)


def folder_for(name: str) -> Path:
    """Return the folder of a detached cluster: its state, control socket and certificates."""
    return folder() / f"cluster-{name}"


@dataclass(frozen=True)
class StartNews:
    """The progress of a start since the last question, and its outcome."""

    reports: list[StartReport]
    banner: StartupBanner | None = None  # once the cluster serves
    failed: str = ""  # why it does not, and never will


class SupervisorActor:
    """The supervisor of a cluster whose routers and workers do not end with it.

    In each life it runs by itself: nobody calls a method after Ray has started it again.
    """

    def __init__(self, config: ClusterConfig, ray_process: tuple[int, float] | None) -> None:
        """ray_process: pid and creation time of the process that runs a Ray for this cluster
        alone, on this machine; None: a joined Ray.
        """
        self._config = config
        self._ray_process = ray_process
        self._supervisor: Supervisor | None = None
        self._banner: StartupBanner | None = None
        self._failed = ""
        self._told = threading.Event()  # somebody knows why it failed
        logs.set_up(config.router.telemetry.log_format, worker=NAME)
        self._owner = ProcessSupervisor()
        child_thread(self._run, "supervise", _failed)

    def follow(self, seen: int) -> StartNews:
        """Return the reports of the start but for the first `seen`, and its outcome."""
        failed, banner = self._failed, self._banner
        reports = self._supervisor.reports.after(seen) if self._supervisor else []
        if failed:
            self._told.set()
        return StartNews(reports, banner, failed)

    def stop(self) -> None:
        """Give up the start, or stop the cluster."""
        if self._supervisor is not None:
            self._supervisor.stop()

    def _run(self) -> None:
        store = RecordStore(self._config.name)
        place = folder_for(self._config.name)
        try:
            try:
                kept_folder(place, ray.get_runtime_context().gcs_address)
            except FileExistsError as err:
                raise StartError(f"a cluster {self._config.name} runs already") from err
            self._supervise(Detached(store, place))
        except StopWanted:
            log.info("the start was given up")
        except BatonError as err:
            log.error("the cluster has ended: %s", err)
            self._failed = str(err)
        finally:
            store.delete()
            shutil.rmtree(place, ignore_errors=True)
            failed_to_start = self._failed and self._banner is None
            if not (failed_to_start and self._told.wait(_HEARD_S)):
                self._end()  # otherwise, whoever has heard why ends it

    def _supervise(self, detached: Detached) -> None:
        self._supervisor = supervisor = Supervisor(
            self._config,
            detached.folder,
            Silent(),
            self._owner,
            detached,
            self._ray_process,
            more_handlers=apply_handlers,
        )
        with supervisor.running() as cluster:
            self._banner = banner_of(cluster)
            supervisor.watch(log.info)

    def _end(self) -> None:
        """End Ray, if it runs for this cluster alone, and this actor for good."""
        if self._ray_process is not None:
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                pid, started = self._ray_process
                if psutil.Process(pid).create_time() == started:
                    os.kill(pid, signal.SIGTERM)
                    return  # Ray ends this process
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)


def _failed(error: Exception) -> None:
    """Say what has ended the cluster, beside what a BatonError says. `_run` has ended it."""
    log.critical("the supervisor has failed", exc_info=error)
