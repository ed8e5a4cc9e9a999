"""Handling of `baton scale` in the process that serves the cluster."""

from collections.abc import Mapping
from typing import Any

from baton.core.role import Role
from baton.deploy.cluster.cluster import Cluster
from baton.deploy.cluster.start_progress import StartProgress


def handle_scale(
    cluster: Cluster, request: Mapping[str, Any], progress: StartProgress
) -> dict[str, list[str]]:
    """Scale as requested and return the worker ids of each named role. Raises DeployError.

    request: see `scale_request`.
    """
    counts = {Role(name): int(count) for name, count in request["scale"].items()}
    for role, count in counts.items():
        cluster.scale(role, count, float(request["drain_s"]), progress)
    return {role.value: [m.worker_id for m in cluster.members(role)] for role in counts}
