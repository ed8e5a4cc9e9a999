"""Finding the cluster that a command asks for something, and asking it."""

import os
import signal
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from baton.deploy.client.router_options import RouterChoice, router_from
from baton.deploy.client.url_control import UrlControl
from baton.deploy.errors import NotRunning
from baton.deploy.files.state_file import ClusterState, newest
from baton.deploy.messages.control import DESCRIBE, STOP, ask
from baton.deploy.messages.start_progress import Silent, StartProgress

_AGAIN_S = 0.2
_SUPERVISOR_S = 20.0
"""Seconds in which Ray starts a supervisor again that has died."""


class ControlClient:
    """A client of whoever runs a cluster on this machine."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state

    @property
    def title(self) -> str:
        return f"{self.state.name} at {self.state.http_url}"

    @property
    def stopped(self) -> str:
        """The message once `alive` is False."""
        return f"stopped {self.title}"

    @property
    def remedy(self) -> str:
        """The advice where a stop takes too long."""
        pid = self.state.pid
        end = f", or end it with `kill -9 {pid}`: Ray and the workers end with it"
        return f"wait{'' if pid is None else end}"

    def ask(
        self, name: str, arguments: Mapping[str, object], progress: StartProgress
    ) -> Mapping[str, object]:
        """Send a request and return its answer.

        name: one of `control_handlers`. Waits for a supervisor that is being started again. Raises
        NotRunning, or DeployError with the cluster's message.
        """
        until = time.monotonic() + _SUPERVISOR_S
        while not self._listens():
            if time.monotonic() > until or not self.alive():
                break
            time.sleep(_AGAIN_S)
        return ask(Path(self.state.control), name, arguments, progress)

    def describe(self) -> Mapping[str, object]:
        """Return what the supervisor says of itself and of the members. Raises DeployError."""
        return ask(Path(self.state.control), DESCRIBE, {}, Silent())

    def stop(self) -> None:
        """Ask the cluster to stop, and do not wait for it.

        A supervisor that does not answer is passed over: the signal to the process with which the
        cluster ends, ends it.
        """
        try:
            self.ask(STOP, {}, Silent())
        except NotRunning:
            if self.state.pid is None:
                raise
            with suppress(ProcessLookupError):
                os.kill(self.state.pid, signal.SIGTERM)

    def alive(self) -> bool:
        """Return whether anything of the cluster is left to wait for."""
        if self.state.pid is not None:
            return self.state.alive
        return Path(self.state.control).parent.exists()

    def _listens(self) -> bool:
        with suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.connect(self.state.control)
            return True
        return False


def control_from(choice: RouterChoice, *, starting: bool = False) -> ControlClient | UrlControl:
    """Return a client of the cluster that the options name, or of the one started last.

    starting: a cluster that does not serve yet counts too. Raises NotRunning.
    """
    if choice.url is None:
        return local_control(choice.cluster, starting=starting)
    return UrlControl(router_from(choice))


def local_control(name: str | None, *, starting: bool = False) -> ControlClient:
    """Return a client of the cluster of this name on this machine, or of the one started last.

    starting: see `control_from`. Raises NotRunning.
    """
    return ControlClient(newest(name, starting=starting))
