"""Configs that replace those with which routers and workers were made, in Ray's control store.

Ray starts a process again with its first arguments, so each life of it looks here for newer ones.
They are pickled: whoever can write to Ray's control store can run any code as this user anyway.
"""

import pickle
from dataclasses import fields, is_dataclass, replace
from typing import TypeVar

import ray

from baton.deploy.cluster.ray_private import ControlStoreSpace

T = TypeVar("T")
_SPACE = "baton-configs"


def newest_config(made_with: T) -> T:
    """Return the config of this actor's process: the newest one, or the one that it was made with.

    Raises RayError if the control store does not answer.
    """
    actor_id = str(ray.get_runtime_context().get_actor_id())
    found = ControlStoreSpace(_SPACE).get(actor_id)
    if found is None:
        return made_with
    config: T = pickle.loads(found)
    return config


def put_config(actor_id: str, config: object) -> None:
    """Give an actor another config, from the next life of its process on. Raises RayError."""
    ControlStoreSpace(_SPACE).put(actor_id, pickle.dumps(config))


def forget_config(actor_id: str) -> None:
    """Forget an actor that is not started again. Idempotent."""
    ControlStoreSpace(_SPACE).delete(actor_id)


def with_changes(config: T, before: T, after: T) -> T:
    """Return a config with those fields of `after` that differ from `before`, in parts too.

    All three are of one dataclass; `config` may differ from both in other fields.
    """
    changed = {}
    for each in fields(config):  # type: ignore[arg-type]
        now, old, new = (getattr(one, each.name) for one in (config, before, after))
        if old != new:
            same = is_dataclass(new) and type(now) is type(old) is type(new)
            changed[each.name] = with_changes(now, old, new) if same else new
    return replace(config, **changed)  # type: ignore[type-var]
