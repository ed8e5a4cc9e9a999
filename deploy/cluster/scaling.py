"""Handling of `baton scale` where the cluster runs."""

from collections.abc import Mapping
from typing import Any

from baton.core.role import Role
from baton.deploy.cluster.cluster import Cluster
from baton.deploy.cluster.scale_request import ScaleRequest
from baton.deploy.messages.start_progress import StartProgress


def handle_scale(
    cluster: Cluster, arguments: Mapping[str, Any], progress: StartProgress
) -> dict[str, list[str]]:
    """Scale as requested and return the worker ids of each named role. Raises DeployError.

    arguments: see `ScaleRequest`.
    """
    request = ScaleRequest.parse(arguments)
    roles = [Role(name) for name in request.counts]
    for role in roles:
        cluster.scale(role, request.counts[role.value], request.drain_s, progress)
    return {role.value: [m.worker_id for m in cluster.members(role)] for role in roles}
