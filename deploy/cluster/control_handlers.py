"""The requests that a running cluster takes, by name, and their handling where it runs."""

from collections.abc import Mapping
from functools import partial

from baton.core.role import Role
from baton.deploy.cluster.change_requests import (
    DRAIN,
    RESTART,
    SCALE,
    DrainRequest,
    RestartRequest,
    ScaleRequest,
)
from baton.deploy.cluster.cluster import Cluster
from baton.deploy.cluster.present_settings import present_settings
from baton.deploy.messages.control import CONFIG, Handlers
from baton.deploy.messages.start_progress import StartProgress
from baton.rpc.identity import ProcessRole


def handle_scale(
    cluster: Cluster, arguments: Mapping[str, object], progress: StartProgress
) -> dict[str, list[str]]:
    """Scale as requested and return the worker ids of each named role. Raises DeployError.

    arguments: see `ScaleRequest`.
    """
    request = ScaleRequest.parse(arguments)
    roles = [Role(name) for name in request.counts]
    for role in roles:
        cluster.scale(role, request.counts[role.value], request.drain_s, progress)
    return {role.value: [m.worker_id for m in cluster.members(role)] for role in roles}


def handle_restart(
    cluster: Cluster, arguments: Mapping[str, object], progress: StartProgress
) -> dict[str, list[str]]:
    """Restart as requested and return the names of what was restarted. Raises DeployError."""
    request = RestartRequest.parse(arguments)
    roles = [ProcessRole(role) for role in request.roles]
    return {"restarted": cluster.rolling.restart(roles, request.drain_s, progress)}


def handle_drain(
    cluster: Cluster, arguments: Mapping[str, object], progress: StartProgress
) -> dict[str, str]:
    """Drain a worker or take that back. Raises DeployError."""
    request = DrainRequest.parse(arguments)
    if request.undo:
        cluster.rolling.undrain(request.worker, progress)
    else:
        cluster.rolling.drain(request.worker, request.drain_s, progress)
    return {"worker": request.worker}


def handle_config(
    cluster: Cluster, arguments: Mapping[str, object], progress: StartProgress
) -> dict[str, object]:
    """Return the present value of each option."""
    return {"settings": [each.as_json() for each in present_settings(cluster)]}


def control_handlers(cluster: Cluster) -> Handlers:
    return {
        SCALE: partial(handle_scale, cluster),
        RESTART: partial(handle_restart, cluster),
        DRAIN: partial(handle_drain, cluster),
        CONFIG: partial(handle_config, cluster),
    }
