"""The part of a cluster's config that the Ray that it joins decides."""

import math
from collections.abc import Sequence
from dataclasses import replace

from baton.core.address import is_loopback
from baton.deploy.cluster import ray_nodes
from baton.deploy.cluster.capacity import Wish, choose_nodes
from baton.deploy.cluster.config import ClusterConfig
from baton.deploy.cluster.ray_nodes import RayNode
from baton.deploy.demand.demand import CPU, Demand
from baton.deploy.errors import StartError


def settled(config: ClusterConfig) -> ClusterConfig:
    """Return the config with the router's address for other hosts, and the threads of workers.

    This process has joined Ray. Routers that may run on any node take the address of that node.
    """
    router = config.router
    if is_loopback(router.internal_host) and not config.routers_move:
        router = replace(router, internal_host=ray_nodes.this_address())
    threads = config.threads or most_threads(config, ray_nodes.living_nodes())
    return replace(config, router=router, threads=threads)


def router_wishes(config: ClusterConfig) -> list[Wish]:
    """Return what all routers of the cluster ask for: a CPU of any node, or of this process's,
    where their ports are settled.

    Of those that may run anywhere, the first runs on this node if it can: users expect it there.
    """
    here = ray_nodes.this_node()
    if not config.routers_move:
        pinned = Demand(cpus=1, labels=((ray_nodes.NODE_ID, here),))
        return [Wish(f"router-{number}", pinned) for number in range(config.routers)]
    return [
        Wish(f"router-{number}", Demand(cpus=1), near=here if number == 0 else None)
        for number in range(config.routers)
    ]


def most_threads(config: ClusterConfig, nodes: Sequence[RayNode]) -> int:
    """Return the most threads for which every first worker has room; 1 where none has."""
    free = [math.floor(node.free.get(CPU, 0.0)) for node in nodes]
    most = min(max(free, default=1), sum(free) // len(config.members))
    return next((count for count in range(most, 1, -1) if _fits(config, nodes, count)), 1)


def _fits(config: ClusterConfig, nodes: Sequence[RayNode], threads: int) -> bool:
    wishes = [
        Wish(
            member.worker_id,
            config.placement.demand(
                member.role, threads, config.engine.device, config.tp_of(member.role)
            ),
            member.role,
        )
        for member in config.members
    ]
    try:
        choose_nodes(nodes, [*router_wishes(config), *wishes])
    except StartError:
        return False
    return True
