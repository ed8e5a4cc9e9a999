"""The nodes of Ray: what each has, and what is free there."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import ray

from baton.deploy.cluster import ray_private

NODE_ID = "ray.io/node-id"
"""The label by which Ray names every node."""


@dataclass(frozen=True)
class RayNode:
    """A living node as Ray counts it."""

    node_id: str
    address: str  # by which it joined Ray
    total: Mapping[str, float] = field(default_factory=dict)  # resources by name
    free: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


def living_nodes() -> list[RayNode]:
    """Return Ray's nodes, those that Ray counts as dead left out."""
    free = ray_private.free_resources()
    return [
        RayNode(
            node["NodeID"],
            node["NodeManagerAddress"],
            node["Resources"],
            free.get(node["NodeID"], {}),
            node["Labels"],
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


def this_node() -> str:
    """Return the id of the node to which this process belongs."""
    return str(ray.get_runtime_context().get_node_id())


def this_address() -> str:
    """Return the address by which the node of this process joined Ray."""
    return str(ray.util.get_node_ip_address())


def restarts_of_this_actor() -> int:
    """Return how often Ray has restarted the actor in this process."""
    found = ray_private.actor_row(str(ray.get_runtime_context().get_actor_id()))
    return int(found["NumRestarts"]) if found else 0
