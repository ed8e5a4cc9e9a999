"""Ray actors: creating them, calling them with a deadline, ending them."""

import re
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
from ray.util import list_named_actors
from ray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from baton.deploy.certs.credential_files import CredentialFiles
from baton.deploy.cluster.actor_process import LifeEnd
from baton.deploy.cluster.arrival import Arrival
from baton.deploy.cluster.capacity import Wish, choose_nodes
from baton.deploy.cluster.host import RouterHost, RoutingServed, WorkerHost, WorkerServed
from baton.deploy.cluster.life_ends import forget_end, read_ends
from baton.deploy.cluster.newest_config import forget_config, put_config
from baton.deploy.cluster.ray_nodes import living_nodes
from baton.deploy.cluster.router_arrival import RouterArrival
from baton.deploy.demand.demand import Demand
from baton.deploy.errors import StartError
from baton.worker.config import WorkerConfig

_NAMES = re.compile(r"(router|prefill|decode)-\d+")


@dataclass(frozen=True)
class Call:
    """A running call of an actor's method."""

    actor: str
    ref: Any

    def ready(self, within_s: float = 0.0) -> bool:
        return bool(ray.wait([self.ref], timeout=within_s)[0])

    def result(self, within_s: float = 0.0) -> Any:
        """Return what the method returned.

        Raises StartError if the method raised, its process ended, or the deadline passed.
        """
        try:
            return ray.get(self.ref, timeout=within_s)
        except GetTimeoutError as err:
            raise StartError(f"{self.actor} did not answer within {within_s:g} s") from err
        except RayTaskError as err:
            raise StartError(f"{self.actor}: {err.cause}") from err
        except RayActorError as err:
            raise StartError(
                f"{self.actor}: its process ended ({err}); where memory ran out, fewer workers or "
                "a smaller --memory-gb help"
            ) from err


class ActorHandle:
    """A router or worker in a process of its own. Ray restarts the process when it dies."""

    def __init__(
        self, name: str, config: Any, demand: Demand, handle: Any, group: PlacementGroup | None
    ) -> None:
        """config: of a router or a worker. handle: Ray's, of the actor that was created. group:
        what is reserved for it; None: nothing.
        """
        self.name = name
        self.config = config  # of the next life of the process
        self._demand = demand
        self._handle = handle
        self._group = group

    @property
    def actor_id(self) -> str:
        """Return Ray's id of the actor, the same in all its lives."""
        return str(self._handle._actor_id.hex())

    def start(self) -> Call:
        """Call `start`, which returns the `Started` of the process's present incarnation."""
        return Call(self.name, self._handle.start.remote())

    def stop(self, grace_s: float) -> Call:
        return Call(self.name, self._handle.stop.remote(grace_s))

    def restart(self) -> None:
        """End the process now; Ray starts it again, with the config that it had."""
        ray.kill(self._handle, no_restart=False)

    def reconfigure(self, config: Any) -> None:
        """Give the process another config, which it takes when it is started again."""
        if config != self.config:
            put_config(self.actor_id, config)
            self.config = config

    def last_end(self) -> LifeEnd | None:
        """Return the last end that a life of the process has recorded. Raises RayError."""
        return read_ends([self.actor_id]).get(self.actor_id)

    @property
    def node_id(self) -> str | None:
        """Return the node on which Ray has reserved what the actor asks for; None: nowhere."""
        if self._group is None:
            return None
        found: dict[int, str] = placement_group_table(self._group).get("bundles_to_node_id", {})
        return found.get(0) or None

    def lacks(self) -> str:
        """Say what Ray lacks to place the actor now; empty if it lacks nothing, or has a place."""
        nodes, reserved_on = living_nodes(), self.node_id
        if any(node.node_id == reserved_on for node in nodes):  # Ray may name a lost one
            return ""
        try:
            choose_nodes(nodes, [Wish(self.name, self._demand)])
        except StartError as err:
            return str(err)
        return ""

    def renew(self, files: CredentialFiles) -> Call:
        """Send the process other contents of its files."""
        return Call(self.name, self._handle.renew.remote(files))

    def end(self) -> None:
        """End the process now, do not restart it, and free what was reserved for it."""
        ray.kill(self._handle, no_restart=True)
        forget_end(self.actor_id)
        forget_config(self.actor_id)
        if self._group is not None:
            remove_placement_group(self._group)


def end_strangers(members: Collection[str]) -> None:
    """End the routers and workers of this namespace that are no members of the cluster."""
    for name in list_named_actors():
        if name not in members and _NAMES.fullmatch(name):
            with suppress(ValueError):  # it has ended meanwhile
                ray.kill(ray.get_actor(name), no_restart=True)
            with suppress(ValueError):  # it had none
                remove_placement_group(get_placement_group(name))


def started_of(actors: Collection[ActorHandle], within_s: float) -> dict[str, Any]:
    """Return the `Started` of each actor that answers within the time, by name."""
    calls = [actor.start() for actor in actors]
    until = time.monotonic() + within_s
    found: dict[str, Any] = {}
    for call in calls:
        with suppress(StartError):  # it is being restarted
            found[call.actor] = call.result(max(0.0, until - time.monotonic()))
    return found


class RouterHandle(ActorHandle):
    """A router: on the node that its demand names, or on any, in a placement group of its own."""

    def __init__(
        self,
        name: str,
        kind: type[RoutingServed],
        config: object,
        demand: Demand,
        arrival: RouterArrival | None = None,
        near: str | None = None,
        listener: Path | None = None,
        *,
        detached: bool = False,
    ) -> None:
        """arrival: of a router that may run on any node. near: the id of the node that Ray tries
        first; None: it chooses. listener: see `RouterHost`. detached: see `_options`.
        """
        options, group = _options(name, demand, detached), None
        if arrival is None:
            options["label_selector"] = dict(demand.labels)
        else:
            group = _reserve(demand, near, name if detached else "")
            options |= _inside(group)
        handle = ray.remote(RouterHost).options(**options).remote(kind, config, arrival, listener)
        super().__init__(name, config, demand, handle, group)

    def leave(self) -> Call:
        """Let the router leave new HTTP connections to its next life."""
        return Call(self.name, self._handle.leave.remote())

    def retire(self, ranks: Collection[int]) -> Call:
        """Tell the router which decode ranks will not be restarted."""
        return Call(self.name, self._handle.retire.remote(ranks))


class WorkerHandle(ActorHandle):
    """A replica, in a placement group of its own.

    The group has a bundle for each of the replica's ranks, which is one, all on one node. If that
    node is lost, Ray reserves the group elsewhere and starts the replica there.
    """

    def __init__(
        self,
        kind: type[WorkerServed],
        config: WorkerConfig,
        demand: Demand,
        arrival: Arrival,
        near: str | None = None,
        *,
        detached: bool = False,
    ) -> None:
        """near: the id of the node that Ray tries first; None: it chooses. detached: see
        `_options`.
        """
        name = config.worker_id
        options = _options(name, demand, detached)
        group = _reserve(demand, near, name if detached else "")
        options |= _inside(group)
        handle = ray.remote(WorkerHost).options(**options).remote(kind, config, arrival)
        super().__init__(name, config, demand, handle, group)

    def drain(self, grace_s: float) -> Call:
        """Make the worker refuse new requests, and give running ones `grace_s` seconds."""
        return Call(self.name, self._handle.drain.remote(grace_s))

    def undrain(self) -> Call:
        return Call(self.name, self._handle.undrain.remote())

    def progress(self) -> Call:
        """Call `progress`, which returns (phase, fraction) of the start."""
        return Call(self.name, self._handle.progress.remote())


def _options(name: str, demand: Demand, detached: bool) -> dict[str, object]:
    """Return an actor's options. Ray sets OMP_NUM_THREADS to the CPUs in that process, and
    CUDA_VISIBLE_DEVICES to the GPUs that it gives it.

    detached: the actor does not end with the process that creates it, and one that has this name
    already is found instead of created.
    """
    outliving = {"lifetime": "detached", "get_if_exists": True} if detached else {}
    return outliving | {
        "name": name,
        "max_restarts": -1,
        "max_concurrency": 64,
        "num_cpus": demand.cpus,
        "num_gpus": demand.gpus,
        "resources": dict(demand.custom),
    }


def _inside(group: PlacementGroup | None) -> dict[str, object]:
    """Return the option that puts an actor into a group; none where there is no group."""
    if group is None:
        return {}
    return {"scheduling_strategy": PlacementGroupSchedulingStrategy(group, 0)}


def _reserve(demand: Demand, near: str | None, kept_as: str) -> PlacementGroup | None:
    """Reserve what one router or replica asks for; nothing where it asks for nothing.

    kept_as: the name of a reservation that does not end with this process, and is found where there
    is one already; empty for one that ends.
    """
    if not demand.resources:
        return None
    if kept_as:
        with suppress(ValueError):
            return get_placement_group(kept_as)
    return placement_group(
        name=kept_as,
        lifetime="detached" if kept_as else None,
        bundles=[demand.resources],
        strategy="STRICT_PACK",  # the ranks of a replica share a host
        bundle_label_selector=[dict(demand.labels)] if demand.labels else None,
        _soft_target_node_id=near,
    )
