"""`baton scale`, on the side of the process that serves the cluster."""

from collections.abc import Mapping
from typing import Any

from baton.deploy.cluster import Cluster
from baton.deploy.progress import StartProgress
from baton.worker.config import Role


def handle_scale(
    cluster: Cluster, request: Mapping[str, Any], progress: StartProgress
) -> dict[str, list[str]]:
    """The workers of each role that was asked about, once it is done. Raises DeployError.

    request: see `scale_request`.
    """
    counts = {Role(name): int(count) for name, count in request["scale"].items()}
    for role, count in counts.items():
        cluster.scale(role, count, float(request["drain_s"]), progress)
    return {role.value: [m.worker_id for m in cluster.members(role)] for role in counts}
