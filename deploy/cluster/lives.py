"""The processes of a cluster's members, as Ray's control store knows them."""

from collections.abc import Collection

import ray
from ray._private import state

from baton.deploy.cluster.actors import ActorHandle
from baton.deploy.cluster.life import Life


def lives_of(actors: Collection[ActorHandle]) -> dict[str, Life]:
    """Return the life of each actor, by its name."""
    known = state.actors()
    lost = {node["NodeID"] for node in ray.nodes() if not node["Alive"]}
    found = {}
    for actor in actors:
        row = known.get(actor.actor_id)
        if row is not None:  # None just after its creation
            at = row["Address"]
            found[actor.name] = Life(
                row["State"], row["Pid"], row["NumRestarts"], at["IPAddress"], at["NodeID"] in lost
            )
    return found
