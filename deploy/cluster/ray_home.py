"""The Ray that a cluster runs on, as the process that runs the cluster sees it."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import psutil

from baton.deploy.cluster import ray_start
from baton.deploy.cluster.config import ClusterConfig
from baton.deploy.cluster.control_store import ControlStore
from baton.deploy.cluster.ray_lost import RayWatch, tell
from baton.deploy.cluster.ray_processes import RayProcesses
from baton.deploy.cluster.wiring import threads_of
from baton.deploy.errors import RayLostError
from baton.deploy.files.owned_folder import owned_folder


class RayHome(Protocol):
    """A Ray that is connected inside the context `connected`."""

    def connect(self) -> None:
        """Start or join Ray. Raises StartError."""
        ...

    def check(self) -> None:
        """Raise RayLostError if Ray has lost a process that it cannot replace."""
        ...

    def kill_if_lost(self) -> bool:
        """Kill what is left of a Ray that has lost such a process; return whether it had."""
        ...

    def leave(self) -> None:
        """Stop a Ray of our own, or disconnect. Idempotent."""
        ...


class OwnRay:
    """A Ray of our own, whose processes are children of this one and end with it."""

    def __init__(self, config: ray_start.RayConfig, watch: RayWatch | None = None) -> None:
        """watch: of whoever ends this process when it hangs on a lost Ray; None: of nobody."""
        self._config = config
        self._watch = watch or RayWatch()
        self._processes: RayProcesses | None = None
        self._reaper: subprocess.Popen[bytes] | None = None

    def connect(self) -> None:
        before = psutil.Process().children()
        ray_start.connect(self._config)
        self._processes = RayProcesses(before)
        self._reaper = _started_reaper(self._config.folder)
        self._watch.begin(
            self._processes,
            "so that no worker would be started again; the cluster ends. Ray's logs are in "
            f"{self._config.folder} until the next start: start again",
        )

    def check(self) -> None:
        reason = self._watch.reason()
        if reason:
            raise RayLostError(reason)

    def kill_if_lost(self) -> bool:
        if self._processes is None or not self._processes.lost():
            return False
        self._processes.kill()  # calls to Ray would wait for what has gone
        return True

    def leave(self) -> None:
        if self._processes is not None:
            if not self._processes.lost():  # otherwise the stop of Ray may hang
                self._watch.end()
            self._processes.kill_helpers()
        ray_start.leave()
        if self._reaper is not None:
            self._reaper.kill()
            self._reaper.communicate()
            self._reaper = None


def _started_reaper(folder: Path | None) -> "subprocess.Popen[bytes]":
    words = [sys.executable, "-m", "baton.deploy.cluster.ray_reaper", str(folder)]
    # A session of its own: what kills our process group must leave it.
    quiet = subprocess.DEVNULL
    return subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True
    )


class JoinedRay:
    """A Ray that somebody else runs: its operator watches all of it but the control store."""

    def __init__(self, config: ray_start.RayConfig, watch: RayWatch | None = None) -> None:
        """watch: as for `OwnRay`."""
        self._config = config
        self._watch = watch or RayWatch()

    def connect(self) -> None:
        ray_start.connect(self._config)
        self._watch.begin(
            ControlStore(ray_start.control_store_address(), tell),
            "so that no worker would be started again; the cluster ends. Start Ray again, then "
            "this command",
        )

    def check(self) -> None:
        reason = self._watch.reason()
        if reason:
            raise RayLostError(reason)

    def kill_if_lost(self) -> bool:
        return bool(self._watch.reason())

    def leave(self) -> None:
        if self._watch.reason():  # a call to it would wait for what has gone
            return
        self._watch.end()
        ray_start.leave()


class RayAround:
    """The Ray that runs this process as one of its actors: neither started nor left by it."""

    def connect(self) -> None:
        pass

    def check(self) -> None:
        pass

    def kill_if_lost(self) -> bool:
        return False

    def leave(self) -> None:
        pass


@contextmanager
def ray_for(config: ClusterConfig, watch: RayWatch | None = None) -> Iterator[OwnRay | JoinedRay]:
    """Yield the Ray that a cluster's config asks for. Raises DeployError.

    watch: begun once Ray is connected. The token of a Ray of our own is deleted after it; its logs
    stay until the next start.
    """
    if config.ray_address is not None:
        yield JoinedRay(ray_start.RayConfig(config.ray_address, namespace=config.name), watch)
        return
    cpus = config.routers + threads_of(config) * len(config.members)
    with owned_folder(ray_start.parent_folder()) as folder:
        try:
            yield OwnRay(ray_start.RayConfig(None, cpus, folder, config.name), watch)
        finally:
            (folder / ray_start.TOKEN).unlink(missing_ok=True)
