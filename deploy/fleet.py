"""The workers of one cluster: Ray actors that start, drain and end."""

import time
from collections.abc import Sequence
from dataclasses import replace

from baton.decode.actor import DecodeActor
from baton.deploy.actors import WorkerActor
from baton.deploy.errors import StartError
from baton.deploy.host import ReportingServed
from baton.deploy.member import Member
from baton.deploy.preflight import check_fits
from baton.deploy.promised import Promised
from baton.deploy.wiring import Wiring
from baton.prefill.actor import PrefillActor
from baton.worker.config import Role, WorkerConfig
from baton.worker.started import Started

STOP_MARGIN_S = 5.0
_KINDS: dict[Role, type[ReportingServed]] = {
    Role.PREFILL: PrefillActor,
    Role.DECODE: DecodeActor,
}


class Fleet:
    """Who should be there. Ray starts again those that die; only `leave` takes one away."""

    def __init__(self, wiring: Wiring) -> None:
        """Raises StartError where the first members do not fit into this machine's memory."""
        self.started: dict[str, Started] = {}  # as they first started, by worker_id
        self._wiring = wiring
        self._promised = Promised()
        self._actors: dict[Member, WorkerActor] = {}
        config = wiring.config
        # What we can see: a Ray of others may have other machines.
        self._sees_memory = config.ray_address is None and config.engine.device == "cpu"
        if self._sees_memory:
            for member in config.members:
                options = wiring.worker(member)
                self._promised.add(member.worker_id, check_fits(member.worker_id, options.engine))

    def members(self, role: Role) -> list[Member]:
        """Those of one role, in the order of their numbers."""
        return sorted((m for m in self._actors if m.role is role), key=lambda m: m.number)

    def begin(self) -> list[WorkerActor]:
        """An actor for each of the first members, which is yet to start."""
        threads = self._wiring.threads
        return [self._make(m, self._wiring.worker(m), threads) for m in self._wiring.config.members]

    def join(self, members: Sequence[Member]) -> list[WorkerActor]:
        """An actor for each, which is yet to start. Raises StartError where one does not fit."""
        try:
            configs = [(member, self._fitting(member)) for member in members]
        except StartError:
            for member in members:
                self._promised.remove(member.worker_id)
            raise
        # Our own Ray has as many CPUs in its books as the first members; a joined one has its own.
        cpus = 0 if self._wiring.config.ray_address is None else self._wiring.threads
        return [self._make(member, config, cpus) for member, config in configs]

    def drain(self, members: Sequence[Member], drain_s: float) -> None:
        """They take nothing new; what they have may end for `drain_s`, then it goes elsewhere."""
        for member in members:
            self.started.pop(member.worker_id, None)
        until = time.monotonic() + drain_s + STOP_MARGIN_S
        for call in [self._actors[member].stop(drain_s) for member in members]:
            call.ready(max(0.0, until - time.monotonic()))

    def leave(self, members: Sequence[Member]) -> None:
        """Their processes end now, for good."""
        for member in members:
            self._promised.remove(member.worker_id)
            self.started.pop(member.worker_id, None)
            actor = self._actors.pop(member, None)
            if actor is not None:  # or the whole cluster went meanwhile
                actor.end()

    def leave_all(self) -> None:
        self.leave(list(self._actors))

    def drain_all(self, drain_s: float) -> None:
        """But for those that are still starting."""
        self.drain([m for m in self._actors if m.worker_id in self.started], drain_s)

    def _make(self, member: Member, config: WorkerConfig, cpus: int) -> WorkerActor:
        actor = WorkerActor(member.worker_id, _KINDS[member.role], config, cpus)
        self._actors[member] = actor
        return actor

    def _fitting(self, member: Member) -> WorkerConfig:
        """With as much memory as a first member had, or what is left of the machine's."""
        config = self._wiring.worker(member)
        if not self._sees_memory:
            return config
        worker_id = member.worker_id
        if config.engine.memory_bytes is None:
            left = self._promised.left({name: s.pid for name, s in self.started.items()})
            config = replace(config, engine=replace(config.engine, memory_bytes=left))
        self._promised.add(worker_id, check_fits(worker_id, config.engine))
        return config
