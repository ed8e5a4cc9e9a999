"""Ray actors: creating them, calling them with a deadline, ending them."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from baton.deploy.cluster.host import Host, RouterHost, Served, WorkerHost
from baton.deploy.errors import StartError


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

    _host: type[Host] = Host

    def __init__(self, name: str, kind: type[Served], config: object, cpus: int) -> None:
        """cpus: logical CPUs that Ray reserves. Ray sets OMP_NUM_THREADS to it in that process."""
        self.name = name
        self.cpus = cpus
        options = {"name": name, "max_restarts": -1, "num_cpus": cpus, "max_concurrency": 64}
        self._handle = ray.remote(self._host).options(**options).remote(kind, config)

    def start(self) -> Call:
        """Call `start`, which returns the `Started` of the process's present incarnation."""
        return Call(self.name, self._handle.start.remote())

    def stop(self, grace_s: float) -> Call:
        return Call(self.name, self._handle.stop.remote(grace_s))

    def lacks(self) -> str:
        """Say which resource Ray lacks to place the actor now; empty if it lacks none."""
        free = ray.available_resources().get("CPU", 0.0)
        return f"it asks for {self.cpus} CPUs, {free:g} are free" if free < self.cpus else ""

    def end(self) -> None:
        """End the process now and do not restart it."""
        ray.kill(self._handle, no_restart=True)


class RouterHandle(ActorHandle):
    _host = RouterHost

    def retire(self, ranks: Collection[int]) -> Call:
        """Tell the router which decode ranks will not be restarted."""
        return Call(self.name, self._handle.retire.remote(ranks))


class WorkerHandle(ActorHandle):
    _host = WorkerHost

    def progress(self) -> Call:
        """Call `progress`, which returns (phase, fraction) of the start."""
        return Call(self.name, self._handle.progress.remote())
