"""Ray actors, in our terms: making them, calling them with a deadline, ending them."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from baton.deploy.errors import StartError
from baton.deploy.host import Host, RouterHost, Served, WorkerHost


@dataclass(frozen=True)
class Call:
    """A method of an actor under way."""

    actor: str
    ref: Any

    def ready(self, within_s: float = 0.0) -> bool:
        return bool(ray.wait([self.ref], timeout=within_s)[0])

    def result(self, within_s: float = 0.0) -> Any:
        """Raises StartError: what the method raised, its process's end, or the deadline."""
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


class Actor:
    """One router or worker in a process of its own, which Ray starts again when it dies."""

    _host: type[Host] = Host

    def __init__(self, name: str, kind: type[Served], config: object, cpus: int) -> None:
        """cpus: logical, for Ray's books; Ray sets OMP_NUM_THREADS to it in that process."""
        self.name = name
        self.cpus = cpus
        options = {"name": name, "max_restarts": -1, "num_cpus": cpus, "max_concurrency": 64}
        self._handle = ray.remote(self._host).options(**options).remote(kind, config)

    def start(self) -> Call:
        """The `Started` of its present life."""
        return Call(self.name, self._handle.start.remote())

    def stop(self, grace_s: float) -> Call:
        return Call(self.name, self._handle.stop.remote(grace_s))

    def lacks(self) -> str:
        """What Ray has too little of to give it a process now; empty where it has enough."""
        free = ray.available_resources().get("CPU", 0.0)
        return f"it asks for {self.cpus} CPUs, {free:g} are free" if free < self.cpus else ""

    def end(self) -> None:
        """Its process, now, for good."""
        ray.kill(self._handle, no_restart=True)


class RouterActor(Actor):
    _host = RouterHost

    def retire(self, ranks: Collection[int]) -> Call:
        """Tell it of decode ranks that are not started again."""
        return Call(self.name, self._handle.retire.remote(ranks))


class WorkerActor(Actor):
    _host = WorkerHost

    def progress(self) -> Call:
        """(phase, fraction) of the start."""
        return Call(self.name, self._handle.progress.remote())
