"""The addresses of routers that may run on any node, in Ray's control store.

Each life of a router records its addresses there. Workers and whoever runs the cluster look them
up, again and again: a router whose node was lost is elsewhere in its next life.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from ray.exceptions import RayError

from baton.core.supervised import OnFailure, ProcessSupervisor, thread
from baton.deploy.cluster.ray_private import ControlStoreSpace
from baton.deploy.errors import StartError

LOOK_S = 1.0
_END_S = 10.0


@dataclass(frozen=True)
class RouterPlace:
    """The addresses of one life of a router, each `host:port` as other hosts reach it."""

    incarnation: int  # of this life, above those of earlier ones
    http: str
    grpc: str
    internal: str  # where workers register


class RouterPlaces:
    """The places of one cluster's routers. Ray is connected."""

    def __init__(self, cluster: str) -> None:
        """cluster: its name."""
        self._space = ControlStoreSpace(f"baton-routers.{cluster}")

    def read(self) -> dict[str, RouterPlace]:
        """Return the last place of each router that has had one, by its name.

        Raises RayError if Ray's control store does not answer.
        """
        return {name: RouterPlace(**json.loads(place)) for name, place in self._space.items()}

    def write(self, name: str, place: RouterPlace) -> None:
        """Record where a router is in its present life. Raises StartError if it has a later one."""
        known = self.read().get(name)
        if known is not None and known.incarnation > place.incarnation:
            raise StartError(f"a newer start of {name} is at {known.internal}")
        self._space.put(name, json.dumps(asdict(place)).encode())

    def delete(self) -> None:
        """Forget all. Idempotent."""
        for name in self._space.keys():
            self._space.delete(name)


@contextmanager
def following(
    places: RouterPlaces,
    owner: ProcessSupervisor,
    tell: Callable[[Mapping[str, RouterPlace]], None],
) -> Iterator[None]:
    """Call `tell` with the places of all routers, and with every change of them, until the context
    ends. It is called on a thread of its own.
    """
    over = threading.Event()
    # ANEW: it begins with telling all places.
    follower = thread(
        lambda: _follow(places, tell, over), owner, OnFailure.ANEW, "router-places", may_return=True
    )
    try:
        yield
    finally:
        over.set()
        follower.join(_END_S)


def _follow(
    places: RouterPlaces,
    tell: Callable[[Mapping[str, RouterPlace]], None],
    over: threading.Event,
) -> None:
    told: Mapping[str, RouterPlace] = {}
    while not over.is_set():
        try:
            found = places.read()
        except RayError:  # the control store is away: what was known stays
            found = dict(told)
        if found != told:
            tell(found)
            told = found
        over.wait(LOOK_S)
