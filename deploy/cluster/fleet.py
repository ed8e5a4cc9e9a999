"""The workers of one cluster: Ray actors that start, drain and end."""

import time
from collections.abc import Sequence
from dataclasses import replace

from baton.core.role import Role
from baton.decode.actor import DecodeActor
from baton.deploy.cluster.actors import WorkerHandle
from baton.deploy.cluster.host import ReportingServed
from baton.deploy.cluster.member import Member
from baton.deploy.cluster.preflight import check_fits
from baton.deploy.cluster.wiring import Wiring
from baton.deploy.errors import StartError
from baton.deploy.process.memory_budget import MemoryBudget
from baton.prefill.actor import PrefillActor
from baton.worker.config import WorkerConfig
from baton.worker.started import WorkerStarted

STOP_MARGIN_S = 5.0
_KINDS: dict[Role, type[ReportingServed]] = {
    Role.PREFILL: PrefillActor,
    Role.DECODE: DecodeActor,
}


class Fleet:
    """The present members. Ray restarts those that die; only `leave` removes one."""

    def __init__(self, wiring: Wiring) -> None:
        """Raises StartError if the first members do not fit into this machine's memory."""
        self.started: dict[str, WorkerStarted] = {}  # as they first started, by worker_id
        self._wiring = wiring
        self._memory_budget = MemoryBudget()
        self._actors: dict[Member, WorkerHandle] = {}
        config = wiring.config
        # False for a Ray of others, which may have other machines.
        self._sees_memory = config.ray_address is None and config.engine.device == "cpu"
        if self._sees_memory:
            for member in config.members:
                options = wiring.worker(member)
                self._memory_budget.add(
                    member.worker_id, check_fits(member.worker_id, options.engine)
                )

    def members(self, role: Role) -> list[Member]:
        """Return the present members of one role, ordered by number."""
        return sorted((m for m in self._actors if m.role is role), key=lambda m: m.number)

    def begin(self) -> list[WorkerHandle]:
        """Create an actor for each of the first members, without starting it."""
        threads = self._wiring.threads
        return [self._make(m, self._wiring.worker(m), threads) for m in self._wiring.config.members]

    def join(self, members: Sequence[Member]) -> list[WorkerHandle]:
        """Create an actor for each new member, without starting it.

        Raises StartError if one does not fit into this machine's memory.
        """
        try:
            configs = [(member, self._fitting(member)) for member in members]
        except StartError:
            for member in members:
                self._memory_budget.remove(member.worker_id)
            raise
        # Our own Ray has CPUs for the first members only; a joined Ray counts its own.
        cpus = 0 if self._wiring.config.ray_address is None else self._wiring.threads
        return [self._make(member, config, cpus) for member, config in configs]

    def drain(self, members: Sequence[Member], drain_s: float) -> None:
        """Make workers refuse new requests, and give running ones `drain_s` seconds."""
        for member in members:
            self.started.pop(member.worker_id, None)
        until = time.monotonic() + drain_s + STOP_MARGIN_S
        for call in [self._actors[member].stop(drain_s) for member in members]:
            call.ready(max(0.0, until - time.monotonic()))

    def leave(self, members: Sequence[Member]) -> None:
        """End the workers' processes now and do not restart them."""
        for member in members:
            self._memory_budget.remove(member.worker_id)
            self.started.pop(member.worker_id, None)
            actor = self._actors.pop(member, None)
            if actor is not None:  # None if the whole cluster has ended meanwhile
                actor.end()
            self._wiring.forget(member)

    def leave_all(self) -> None:
        self.leave(list(self._actors))

    def drain_all(self, drain_s: float) -> None:
        """Drain all workers that have started."""
        self.drain([m for m in self._actors if m.worker_id in self.started], drain_s)

    def _make(self, member: Member, config: WorkerConfig, cpus: int) -> WorkerHandle:
        self._wiring.issue(member)
        actor = WorkerHandle(member.worker_id, _KINDS[member.role], config, cpus)
        self._actors[member] = actor
        return actor

    def _fitting(self, member: Member) -> WorkerConfig:
        """Return a member's config with as much memory as a first member has, or what is free."""
        config = self._wiring.worker(member)
        if not self._sees_memory:
            return config
        worker_id = member.worker_id
        if config.engine.memory_bytes is None:
            left = self._memory_budget.left({name: s.pid for name, s in self.started.items()})
            config = replace(config, engine=replace(config.engine, memory_bytes=left))
        self._memory_budget.add(worker_id, check_fits(worker_id, config.engine))
        return config
