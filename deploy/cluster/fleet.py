"""The workers of one cluster: Ray actors that start, drain and end."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from baton.core.role import Role
from baton.decode.actor import DecodeActor
from baton.deploy.certs.credential_files import CredentialFiles
from baton.deploy.cluster.actor_processes import processes_of
from baton.deploy.cluster.actors import ActorHandle, WorkerHandle
from baton.deploy.cluster.arrival import Arrival, Travel
from baton.deploy.cluster.capacity import Wish, choose_nodes
from baton.deploy.cluster.host import WorkerServed
from baton.deploy.cluster.member import Member
from baton.deploy.cluster.newest_config import with_changes
from baton.deploy.cluster.preflight import check_fits, check_together
from baton.deploy.cluster.ray_nodes import living_nodes
from baton.deploy.cluster.wiring import Wiring
from baton.deploy.demand.demand import Demand
from baton.deploy.errors import ScaleError, StartError
from baton.deploy.process.memory_budget import MemoryBudget
from baton.engine.settings.config import EngineConfig
from baton.prefill.actor import PrefillActor
from baton.rpc.identity import ProcessRole
from baton.worker.config import WorkerConfig
from baton.worker.runtime import WorkerStarted

STOP_MARGIN_S = 5.0
_REMEDY = (
    "Add nodes, or ask for less: fewer workers, smaller --threads or --gpus-per-worker. "
    "--wait-for-nodes waits for nodes that an autoscaler adds"
)
_KINDS: dict[Role, type[WorkerServed]] = {
    Role.PREFILL: PrefillActor,
    Role.DECODE: DecodeActor,
}


class Fleet:
    """The present members. Ray restarts those that die; only `leave` removes one."""

    def __init__(
        self,
        wiring: Wiring,
        *,
        detached: bool = False,
        budgets: Mapping[str, int] | None = None,
    ) -> None:
        """Reserve memory for the first members.

        detached: workers do not end with this process. budgets: those of members that exist
        already, in place of first members. Raises StartError if the first members do not fit into
        this machine's memory.
        """
        self.started: dict[str, WorkerStarted] = {}  # as they first started, by worker_id
        self._wiring = wiring
        self._detached = detached
        self._taken_over = budgets is not None
        self._memory_budget = MemoryBudget()
        self._actors: dict[Member, WorkerHandle] = {}
        config = wiring.config
        # False for a Ray of others, which may have other machines.
        self._sees_memory = config.ray_address is None and config.engine.device == "cpu"
        if budgets is not None:
            for worker_id, budget_bytes in budgets.items():
                self._memory_budget.add(worker_id, budget_bytes)
        elif self._sees_memory:
            for member in config.members:
                options = wiring.worker(member)
                self._memory_budget.add(
                    member.worker_id, check_fits(member.worker_id, options.engine)
                )
            check_together(self.budgets, config.engine.host_tier_bytes)

    def members(self, role: Role) -> list[Member]:
        """Return the present members of one role, ordered by number."""
        return sorted((m for m in self._actors if m.role is role), key=lambda m: m.number)

    @property
    def all_members(self) -> set[Member]:
        return set(self._actors)

    @property
    def actors(self) -> tuple[WorkerHandle, ...]:
        return tuple(self._actors.values())

    @property
    def budgets(self) -> dict[str, int]:
        """Return the bytes of memory promised to each worker, by worker_id."""
        return self._memory_budget.budgets

    @property
    def pids(self) -> dict[str, int]:
        """Return the present process of each worker that has one, by worker_id."""
        processes = processes_of(self.actors)
        return {name: each.pid for name, each in processes.items() if each.pid}

    def check(self, wiring: Wiring) -> None:
        """Raise StartError if what another wiring changes does not fit into a worker's memory."""
        for actor, config in self._configs_in(wiring).items() if self._sees_memory else ():
            promised = self.budgets[actor.name] // config.engine.tp
            check_fits(actor.name, replace(config.engine, memory_bytes=promised))

    def adopt(self, wiring: Wiring) -> None:
        """Give the workers, from their next start on, and those that join, what differs in another
        wiring.
        """
        for actor, config in self._configs_in(wiring).items():
            actor.reconfigure(config)
        self._wiring = wiring

    def _configs_in(self, wiring: Wiring) -> dict[WorkerHandle, WorkerConfig]:
        """Return each worker's config with what differs in another wiring."""
        before = self._wiring
        return {
            actor: with_changes(actor.config, before.worker(member), wiring.worker(member))
            for member, actor in self._actors.items()
        }

    def find_room(self, members: Sequence[Member], besides: Sequence[Wish] = ()) -> dict[str, str]:
        """Return the id of a Ray node for each worker that is about to be created.

        Empty where Ray waits for nodes that an autoscaler adds. besides: other processes to come.
        Raises StartError that names what is missing.
        """
        placement = self._wiring.config.placement
        if placement.await_nodes:
            return {}
        first = not self._actors
        wishes = [Wish(m.worker_id, self._demand(m.role, first), m.role) for m in members]
        there = [(actor.node_id, member.role) for member, actor in self._actors.items()]
        known = [(node_id, role) for node_id, role in there if node_id is not None]
        try:
            return choose_nodes(living_nodes(), [*besides, *wishes], known)
        except StartError as err:
            raise StartError(f"{err}. {_REMEDY}") from err

    def begin(self, members: Sequence[Member], nodes: Mapping[str, str]) -> list[WorkerHandle]:
        """Create an actor for each of these first members, without starting it.

        A detached actor that exists already is found instead. nodes: from `find_room`.
        """
        configs = [(member, self._wiring.worker(member)) for member in members]
        return self._make_all(configs, nodes, first=True)

    def join(self, members: Sequence[Member]) -> list[WorkerHandle]:
        """Create an actor for each new member, without starting it.

        Raises StartError if one does not fit into this machine's memory, or has no room in Ray.
        """
        nodes = self.find_room(members)
        try:
            configs = [(member, self._fitting(member)) for member in members]
        except StartError:
            for member in members:
                self._memory_budget.remove(member.worker_id)
            raise
        return self._make_all(configs, nodes, first=False)

    def drain(self, members: Sequence[Member], drain_s: float) -> None:
        """Make workers refuse new requests, and give running ones `drain_s` seconds."""
        for member in members:
            self.started.pop(member.worker_id, None)
        until = time.monotonic() + drain_s + STOP_MARGIN_S
        for call in [self._actors[member].stop(drain_s) for member in members]:
            call.ready(max(0.0, until - time.monotonic()))

    def find(self, worker_id: str) -> tuple[Member, WorkerHandle]:
        """Return a present member. Raises ScaleError, which names those that there are."""
        for member, actor in self._actors.items():
            if member.worker_id == worker_id:
                return member, actor
        there = ", ".join(sorted(member.worker_id for member in self._actors))
        raise ScaleError(f"there is no worker {worker_id!r}; there are {there}")

    def leave(self, members: Sequence[Member]) -> None:
        """End the workers' processes now and do not restart them."""
        for member in members:
            self._memory_budget.remove(member.worker_id)
            self.started.pop(member.worker_id, None)
            actor = self._actors.pop(member, None)
            if actor is not None:  # None if the whole cluster has ended meanwhile
                actor.end()
            self._wiring.forget(member)

    def files(self) -> dict[ActorHandle, Callable[[], CredentialFiles]]:
        """Return how to read each present worker's certificate on this machine."""
        folder_of = self._wiring.credentials.folder_of
        return {
            actor: partial(
                CredentialFiles.read, folder_of(ProcessRole(member.role), member.worker_id)
            )
            for member, actor in list(self._actors.items())
        }

    def leave_all(self) -> None:
        self.leave(list(self._actors))

    def drain_all(self, drain_s: float) -> None:
        """Drain all workers that have started."""
        self.drain([m for m in self._actors if m.worker_id in self.started], drain_s)

    def _make_all(
        self,
        configs: Sequence[tuple[Member, WorkerConfig]],
        nodes: Mapping[str, str],
        *,
        first: bool,
    ) -> list[WorkerHandle]:
        beside = Counter(nodes.get(member.worker_id) for member, _ in configs)
        made = []
        for member, config in configs:
            if not (self._taken_over and self._wiring.has_issued(member)):
                self._wiring.issue(member)
            near = nodes.get(member.worker_id)
            engine = self._sharing(config.engine, beside[near])
            actor = WorkerHandle(
                _KINDS[member.role],
                replace(config, engine=engine),
                self._demand(member.role, first),
                self._arrival(config),
                near,
                detached=self._detached,
            )
            self._actors[member] = actor
            made.append(actor)
        return made

    def _sharing(self, engine: EngineConfig, beside: int) -> EngineConfig:
        """Return the engine's config for a node with `beside` workers that start together."""
        gpus = self._wiring.config.placement.gpus_on(engine.device, engine.tp)
        part = min(1.0, gpus) if engine.device != "cpu" else 1.0  # of one GPU's memory
        return replace(engine, workers_on_host=beside, memory_fraction=engine.fraction * part)

    def _demand(self, role: Role, first: bool) -> Demand:
        """Return what a worker asks for. first: it is one that the cluster starts with."""
        config = self._wiring.config
        # Our own Ray has CPUs for the first members only; a joined Ray counts its own.
        counted = first or config.ray_address is not None
        cpus = self._wiring.threads if counted else 0
        return config.placement.demand(role, cpus, config.engine.device, config.tp_of(role))

    def _arrival(self, config: WorkerConfig) -> Arrival:
        cluster = self._wiring.config
        travel = None
        if cluster.ray_address is not None and config.credentials is not None:
            files = CredentialFiles.read(config.credentials)
            routers_of = cluster.name if cluster.routers_move else None
            travel = Travel(files, cluster.worker_interface, routers_of)
        return Arrival(time.time_ns(), travel)

    def _fitting(self, member: Member) -> WorkerConfig:
        """Return a member's config with as much memory as a first member has, or what is free."""
        config = self._wiring.worker(member)
        if not self._sees_memory:
            return config
        worker_id = member.worker_id
        if config.engine.memory_bytes is None:
            left = self._memory_budget.left(self.pids, config.engine.host_tier_bytes)
            left //= config.engine.tp
            config = replace(config, engine=replace(config.engine, memory_bytes=left))
        self._memory_budget.add(worker_id, check_fits(worker_id, config.engine))
        check_together(self.budgets, config.engine.host_tier_bytes)
        return config
