"""The processes of a cluster's members, as Ray's control store knows them."""

from collections.abc import Collection, Mapping

import ray

from baton.deploy.cluster import ray_private
from baton.deploy.cluster.actor_process import ActorProcess
from baton.deploy.cluster.actors import ActorHandle


def processes_of(
    actors: Collection[ActorHandle], before: Mapping[str, ActorProcess] | None = None
) -> dict[str, ActorProcess]:
    """Return the process of each actor, by its name.

    before: those of the last look. Ray forgets at once where a process was that has died.
    """
    known = ray_private.actor_rows()
    lost = {node["NodeID"] for node in ray.nodes() if not node["Alive"]}
    found = {}
    for actor in actors:
        row = known.get(actor.actor_id)
        if row is not None:  # None just after its creation
            host, node_id = row["Address"]["IPAddress"], row["Address"]["NodeID"]
            last = (before or {}).get(actor.name)
            if not host and last is not None:
                host, node_id = last.host, last.node_id
            found[actor.name] = ActorProcess(
                row["State"], row["Pid"], row["NumRestarts"], host, node_id, node_id in lost
            )
    return found
