"""Finding the cluster that a command asks for something, and asking it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baton.deploy.client.state_file import newest
from baton.deploy.cluster.control import ask
from baton.deploy.cluster.start_progress import StartProgress


@dataclass(frozen=True)
class ControlClient:
    """A client of whoever runs a cluster."""

    socket: Path

    def ask(
        self, name: str, arguments: Mapping[str, Any], progress: StartProgress
    ) -> Mapping[str, Any]:
        """Send a request and return its answer.

        name: one of `control_handlers`. Raises NotRunning, or DeployError with the cluster's
        message.
        """
        return ask(self.socket, name, arguments, progress)


def control_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name a cluster; `control_from` reads their values."""
    return command


def control_from(given: Mapping[str, Any]) -> ControlClient:
    """Return a client of the cluster that the options name, or of the one started last.

    given: the options' values by parameter name. Raises NotRunning.
    """
    return ControlClient(Path(newest().control))
