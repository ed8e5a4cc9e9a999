"""The reasons why processes have ended by themselves, kept in Ray's control store."""

import json
from collections.abc import Collection
from dataclasses import asdict

import ray
from ray.experimental import internal_kv

from baton.deploy.cluster import ray_nodes
from baton.deploy.cluster.actor_process import LifeEnd

_SPACE = b"baton-ends"
_MOST_CHARS = 2000
"""The length of a reason: an error may carry a whole message of a library's."""


def record_end(reason: str) -> None:
    """Record why the process of this actor ends. Raises RayError."""
    end = LifeEnd(ray_nodes.restarts_of_this_actor(), reason[:_MOST_CHARS])
    actor_id = str(ray.get_runtime_context().get_actor_id())
    internal_kv._internal_kv_put(
        actor_id.encode(), json.dumps(asdict(end)).encode(), overwrite=True, namespace=_SPACE
    )


def read_ends(actor_ids: Collection[str]) -> dict[str, LifeEnd]:
    """Return the last recorded end of each of these actors that has one, by its id.

    Raises RayError if Ray's control store does not answer.
    """
    found = {}
    for key in internal_kv._internal_kv_list(b"", namespace=_SPACE):
        if key.decode() in actor_ids:
            value = internal_kv._internal_kv_get(key, namespace=_SPACE)
            if value is not None:  # None: deleted meanwhile
                found[key.decode()] = LifeEnd(**json.loads(value))
    return found


def forget_end(actor_id: str) -> None:
    """Forget an actor that is not started again. Idempotent."""
    internal_kv._internal_kv_del(actor_id.encode(), namespace=_SPACE)
