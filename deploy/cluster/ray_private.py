"""The parts of Ray that Baton uses and that Ray does not promise to keep. No other module imports
them.

Ray has no public way to any of this. A new minor release may change it, so pyproject.toml bounds
Ray to the releases that were tried.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ray._private import services, state, worker
from ray._private.authentication.authentication_token_setup import (
    AuthenticationTokenLoader,
    Config,
)
from ray.experimental import internal_kv

from baton.deploy.messages.json_object import JsonObject


class ControlStoreSpace:
    """One namespace of the key-value table in Ray's control store. Ray is connected.

    Each method raises RayError if the control store does not answer.
    """

    def __init__(self, name: str) -> None:
        """name: Ray takes what precedes a colon for the whole namespace when it lists keys."""
        self._name = name.encode()

    def get(self, key: str) -> bytes | None:
        found: bytes | None = internal_kv._internal_kv_get(key.encode(), namespace=self._name)
        return found

    def put(self, key: str, value: bytes) -> None:
        internal_kv._internal_kv_put(key.encode(), value, overwrite=True, namespace=self._name)

    def delete(self, key: str) -> None:
        """Forget a key. Idempotent."""
        internal_kv._internal_kv_del(key.encode(), namespace=self._name)

    def keys(self) -> list[str]:
        return [key.decode() for key in internal_kv._internal_kv_list(b"", namespace=self._name)]

    def items(self) -> Iterator[tuple[str, bytes]]:
        """Yield what the namespace has, without keys that are deleted meanwhile."""
        for key in self.keys():
            value = self.get(key)
            if value is not None:
                yield key, value


def actor_rows() -> Mapping[str, JsonObject]:
    """Return what the control store knows of each actor, by the actor's id."""
    rows: Mapping[str, JsonObject] = state.actors()
    return rows


def actor_row(actor_id: str) -> JsonObject:
    """Return what the control store knows of one actor; empty for one that it does not know."""
    row: JsonObject = state.actors(actor_id)
    return row


def free_resources() -> Mapping[str, Mapping[str, float]]:
    """Return the free resources of each node, by the node's id."""
    free: Mapping[str, Mapping[str, float]] = state.available_resources_per_node()
    return free


def logs_folder() -> Path:
    """Return where the processes of the connected Ray write their logs."""
    return Path(worker._global_node.get_logs_dir_path())


def read_token_again() -> None:
    """Have Ray read mode and token from the environment, as it did when it was imported."""
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def tell_lines(tell: Callable[[JsonObject, bool], None]) -> None:
    """Call `tell` with the lines that Ray would print in this process."""
    worker.print_to_stdstream = tell


@contextmanager
def loopback_kept() -> Iterator[None]:
    """Keep Ray from replacing a loopback address by the machine's own, which it does everywhere.

    Ray's processes listen on loopback alone if their node has a loopback address. Ray has no switch
    for that on Linux.
    """
    resolve = services.resolve_ip_for_localhost
    services.resolve_ip_for_localhost = lambda host: host
    try:
        yield
    finally:
        services.resolve_ip_for_localhost = resolve
