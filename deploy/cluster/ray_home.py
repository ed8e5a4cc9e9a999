"""The Ray that a cluster runs on, as the process that runs the cluster sees it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import psutil

from baton.deploy.cluster import ray_start
from baton.deploy.cluster.config import ClusterConfig
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

    def __init__(self, config: ray_start.RayConfig) -> None:
        self._config = config
        self._processes: RayProcesses | None = None

    def connect(self) -> None:
        before = psutil.Process().children()
        ray_start.connect(self._config)
        self._processes = RayProcesses(before)

    def check(self) -> None:
        lost = self._processes.lost() if self._processes else ""
        if lost:
            raise RayLostError(
                f"Ray's {lost} has ended, so that no worker would be started again; the cluster "
                f"ends. Ray's logs are in {self._config.folder} until the next start: start again"
            )

    def kill_if_lost(self) -> bool:
        if self._processes is None or not self._processes.lost():
            return False
        self._processes.kill()  # calls to Ray would wait for what has gone
        return True

    def leave(self) -> None:
        if self._processes is not None:
            self._processes.kill_helpers()
        ray_start.leave()


class JoinedRay:
    """A Ray that somebody else runs."""

    def __init__(self, config: ray_start.RayConfig) -> None:
        self._config = config

    def connect(self) -> None:
        ray_start.connect(self._config)

    def check(self) -> None:
        pass  # its operator watches it

    def kill_if_lost(self) -> bool:
        return False

    def leave(self) -> None:
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
def ray_for(config: ClusterConfig) -> Iterator[OwnRay | JoinedRay]:
    """Yield the Ray that a cluster's config asks for. Raises DeployError.

    The token of one of our own is deleted after it; its logs stay until the next start.
    """
    if config.ray_address is not None:
        yield JoinedRay(ray_start.RayConfig(config.ray_address, namespace=config.name))
        return
    cpus = config.routers + threads_of(config) * len(config.members)
    with owned_folder(ray_start.parent_folder()) as folder:
        try:
            yield OwnRay(ray_start.RayConfig(None, cpus, folder, config.name))
        finally:
            (folder / ray_start.TOKEN).unlink(missing_ok=True)
