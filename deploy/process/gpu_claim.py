"""The parts of GPUs that this user's workers by hand have planned, so that a second one on the same
GPU is refused before it loads anything. Workers of a cluster get their parts from Ray.
"""

import fcntl
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from baton.deploy.errors import StartError
from baton.deploy.files.owned_folder import owned_folder, owned_folders
from baton.deploy.files.state_file import folder
from baton.engine.layout.device import device_of
from baton.engine.settings.config import EngineConfig

_CLAIM = "claim.json"
_ORDER = "order"
"""The file whose lock a worker holds while it looks at the others' claims and writes its own."""


@dataclass(frozen=True)
class GpuClaim:
    """One worker's part of the memory of each of its GPUs."""

    worker: str
    gpus: tuple[str, ...]  # their UUIDs
    part: float


@contextmanager
def claimed_gpus(config: EngineConfig, worker: str) -> Iterator[None]:
    """Hold a worker's parts of its GPUs; nothing on a CPU. Raises StartError where other workers of
    this user have planned too much of one.
    """
    if not config.on_gpu:
        yield
        return
    first = device_of(config.device).index or 0
    found = [torch.cuda.get_device_properties(first + rank) for rank in range(config.tp)]
    part = config.fraction
    if config.memory_bytes is not None:
        part = config.memory_bytes / min(gpu.total_memory for gpu in found)
    parent = folder() / "gpus"
    parent.mkdir(mode=0o700, exist_ok=True)
    with holding(GpuClaim(worker, tuple(str(gpu.uuid) for gpu in found), part), parent):
        yield


@contextmanager
def holding(claim: GpuClaim, parent: Path) -> Iterator[None]:
    """Hold a claim among those in `parent` until the context or the process ends. See
    `claimed_gpus`.
    """
    with ExitStack() as held:
        with (parent / _ORDER).open("w") as order:
            fcntl.flock(order, fcntl.LOCK_EX)
            _check(claim, _living(parent))
            own = held.enter_context(owned_folder(parent))
            (own / _CLAIM).write_text(json.dumps(asdict(claim)))
        yield


def _living(parent: Path) -> list[GpuClaim]:
    """Return the claims of processes that run."""
    claims = []
    for own in owned_folders(parent):
        with suppress(FileNotFoundError):  # removed meanwhile
            found = json.loads((own / _CLAIM).read_text())
            claims.append(GpuClaim(found["worker"], tuple(found["gpus"]), found["part"]))
    return claims


def _check(claim: GpuClaim, others: list[GpuClaim]) -> None:
    for gpu in claim.gpus:
        sharing = [other for other in others if gpu in other.gpus]
        taken = sum(other.part for other in sharing)
        if sharing and taken + claim.part > 1 + 1e-9:
            names = ", ".join(other.worker for other in sharing)
            raise StartError(
                f"{claim.worker} would take {claim.part:.0%} of the memory of GPU {gpu}, of which "
                f"{names} has planned {taken:.0%}: give each worker on it a part by "
                f"--memory-fraction (as {0.9 / (1 + len(sharing)):.2g}) or --memory-gb, or this "
                "one another GPU (--device cuda:1)"
            )
