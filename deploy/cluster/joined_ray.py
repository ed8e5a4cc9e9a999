"""The part of a cluster's config that the Ray that it joins decides."""

import math
from collections.abc import Sequence
from dataclasses import replace

from baton.core.loopback import is_loopback
from baton.deploy.cluster import ray_nodes
from baton.deploy.cluster.config import ClusterConfig
from baton.deploy.cluster.demand import CPU, Demand
from baton.deploy.cluster.ray_nodes import RayNode
from baton.deploy.cluster.room import Wish, choose_nodes
from baton.deploy.errors import StartError


def settled(config: ClusterConfig) -> ClusterConfig:
    """Return the config with the router's address for other hosts, and the threads of workers.

    This process has joined Ray.
    """
    router = config.router
    if is_loopback(router.internal_host):
        router = replace(router, internal_host=ray_nodes.this_address())
    threads = config.threads or most_threads(config, ray_nodes.living_nodes())
    return replace(config, router=router, threads=threads)


def router_demand() -> Demand:
    """Return what a router asks for: a CPU of this process's node, whose ports are settled."""
    return Demand(cpus=1, labels=((ray_nodes.NODE_ID, ray_nodes.this_node()),))


def router_wishes(config: ClusterConfig) -> list[Wish]:
    """Return what all routers of the cluster ask for."""
    return [Wish(f"router-{number}", router_demand()) for number in range(config.routers)]


def most_threads(config: ClusterConfig, nodes: Sequence[RayNode]) -> int:
    """Return the most threads for which every first worker has room; 1 where none has."""
    free = [math.floor(node.free.get(CPU, 0.0)) for node in nodes]
    most = min(max(free, default=1), sum(free) // len(config.members))
    return next((count for count in range(most, 1, -1) if _fits(config, nodes, count)), 1)


def _fits(config: ClusterConfig, nodes: Sequence[RayNode], threads: int) -> bool:
    wishes = [
        Wish(
            member.worker_id,
            config.placement.demand(member.role, threads, config.engine.device),
            member.role,
        )
        for member in config.members
    ]
    try:
        choose_nodes(nodes, [*router_wishes(config), *wishes])
    except StartError:
        return False
    return True
