"""The reasons why processes have ended by themselves, kept in Ray's control store."""

import json
from collections.abc import Collection
from dataclasses import asdict

import ray

from baton.deploy.cluster import ray_nodes
from baton.deploy.cluster.actor_process import LifeEnd
from baton.deploy.cluster.ray_private import ControlStoreSpace

NO_START = "cannot start"
"""The first words of a reason where a life could not start."""
_SPACE = "baton-ends"
_MOST_CHARS = 2000
"""The length of a reason: an error may carry a whole message of a library's."""


def record_end(reason: str) -> None:
    """Record why the process of this actor ends. Raises RayError."""
    end = LifeEnd(ray_nodes.restarts_of_this_actor(), reason[:_MOST_CHARS])
    actor_id = str(ray.get_runtime_context().get_actor_id())
    ControlStoreSpace(_SPACE).put(actor_id, json.dumps(asdict(end)).encode())


def read_ends(actor_ids: Collection[str]) -> dict[str, LifeEnd]:
    """Return the last recorded end of each of these actors that has one, by its id.

    Raises RayError if Ray's control store does not answer.
    """
    space = ControlStoreSpace(_SPACE)
    found = {actor_id: space.get(actor_id) for actor_id in space.keys() if actor_id in actor_ids}
    # None: deleted meanwhile.
    return {name: LifeEnd(**json.loads(end)) for name, end in found.items() if end is not None}


def forget_end(actor_id: str) -> None:
    """Forget an actor that is not started again. Idempotent."""
    ControlStoreSpace(_SPACE).delete(actor_id)
