"""The resources and labels that a router or worker asks of its Ray node."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from baton.core.role import Role
from baton.deploy.demand.label_selector import check_key, check_selector
from baton.deploy.errors import StartError

CPU, GPU = "CPU", "GPU"
_T = TypeVar("_T")
_OWN = (CPU, GPU, "memory", "object_store_memory")
"""Resources that have an option of their own, or that no worker asks for."""


@dataclass(frozen=True)
class Demand:
    """Resources and labels of one node."""

    cpus: float = 0.0  # logical
    gpus: float = 0.0
    custom: tuple[tuple[str, float], ...] = ()  # resources that the operator named, and amounts
    labels: tuple[tuple[str, str], ...] = ()  # keys, and the selectors of their values

    @property
    def resources(self) -> dict[str, float]:
        """Return the amounts by Ray's names, without those that are 0."""
        asked = {CPU: self.cpus, GPU: self.gpus, **dict(self.custom)}
        return {name: amount for name, amount in asked.items() if amount}

    def __str__(self) -> str:
        asked = ", ".join(f"{amount:g} {name}" for name, amount in self.resources.items())
        labels = ", ".join(f"{key}={selector}" for key, selector in self.labels)
        return f"{asked or 'nothing'}{f' on a node with {labels}' if labels else ''}"


@dataclass(frozen=True)
class RoleDemand:
    """The labels and custom resources that every worker of one role asks for."""

    labels: tuple[tuple[str, str], ...] = ()
    custom: tuple[tuple[str, float], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.labels or self.custom)


@dataclass(frozen=True)
class NodePlacement:
    """The rules by which Ray places the workers of a cluster on its nodes."""

    gpus: float | None = None  # of each worker; None: one a rank on CUDA, none on a CPU
    prefill: RoleDemand = RoleDemand()
    decode: RoleDemand = RoleDemand()
    await_nodes: bool = False  # wait for nodes that an autoscaler adds

    def gpus_on(self, device: str, ranks: int) -> float:
        """Return the GPUs that a worker with so many ranks on this device asks for. Ray gives it
        all of them on one node.
        """
        if self.gpus is not None:
            return self.gpus
        return float(ranks) if device.startswith("cuda") else 0.0

    def demand(self, role: Role, cpus: float, device: str, ranks: int) -> Demand:
        """Return what a worker of this role asks for."""
        of_role = self.prefill if role is Role.PREFILL else self.decode
        return Demand(cpus, self.gpus_on(device, ranks), of_role.custom, of_role.labels)


def labels_from(option: str, words: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Parse words such as `pool=fast` or `zone=in(a,b)`. Raises StartError."""
    found: dict[str, str] = {}
    for word in words:
        key, equals, selector = word.partition("=")
        try:
            if not equals:
                raise ValueError("expected KEY=VALUE")
            check_key(key)
            check_selector(selector)
        except ValueError as err:
            raise StartError(f"{option} {word}: {err}") from err
        _add(found, key, selector, option)
    return tuple(found.items())


def resources_from(option: str, words: tuple[str, ...]) -> tuple[tuple[str, float], ...]:
    """Parse words such as `rdma=1`. Raises StartError."""
    found: dict[str, float] = {}
    for word in words:
        name, equals, number = word.partition("=")
        try:
            amount = float(number) if equals and name else 0.0
        except ValueError:
            amount = 0.0
        if not 0 < amount < float("inf") or (amount > 1 and amount % 1):
            raise StartError(
                f"{option} {word}: expected NAME=AMOUNT with a whole number, or a part of 1"
            )
        if name in _OWN:
            raise StartError(
                f"{option} {word}: workers ask for CPUs by --threads and for GPUs by "
                "--gpus-per-worker; name a resource of your own"
            )
        _add(found, name, amount, option)
    return tuple(found.items())


def _add(found: dict[str, _T], name: str, value: _T, option: str) -> None:
    if name in found:
        raise StartError(f"{option} names {name} twice")
    found[name] = value


def missing(asked: Mapping[str, float], free: Mapping[str, float]) -> dict[str, float]:
    """Return the resources of which less is free than is asked."""
    return {name: amount for name, amount in asked.items() if free.get(name, 0.0) < amount - 1e-6}
