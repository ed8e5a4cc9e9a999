"""Handling of `baton restart` and `baton drain` where the cluster runs."""

from collections.abc import Mapping
from typing import Any

from baton.deploy.cluster.cluster import Cluster
from baton.deploy.cluster.rolling_requests import DrainRequest, RestartRequest
from baton.deploy.messages.start_progress import StartProgress
from baton.rpc.identity import ProcessRole


def handle_restart(
    cluster: Cluster, arguments: Mapping[str, Any], progress: StartProgress
) -> dict[str, list[str]]:
    """Restart as requested and return the names of what was restarted. Raises DeployError."""
    request = RestartRequest.parse(arguments)
    roles = [ProcessRole(role) for role in request.roles]
    return {"restarted": cluster.rolling.restart(roles, request.drain_s, progress)}


def handle_drain(
    cluster: Cluster, arguments: Mapping[str, Any], progress: StartProgress
) -> dict[str, str]:
    """Drain a worker or take that back. Raises DeployError."""
    request = DrainRequest.parse(arguments)
    if request.undo:
        cluster.rolling.undrain(request.worker, progress)
    else:
        cluster.rolling.drain(request.worker, request.drain_s, progress)
    return {"worker": request.worker}
