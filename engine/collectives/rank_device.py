"""The devices of a replica's ranks."""

import os

import torch

from baton.core.errors import ConfigError
from baton.engine.layout.device import device_of
from baton.engine.settings.config import EngineConfig

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_ALLOCATOR_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def rank_device(config: EngineConfig, rank: int) -> torch.device:
    """Return a rank's device: on GPUs, the rank's number counts those that the process sees."""
    if config.tp == 1 or config.device == "cpu":
        return device_of(config.device)
    return torch.device("cuda", rank)


def device_name(device: torch.device) -> str:
    """Describe a device as operators know it: `cpu`, or `cuda:1 (GPU 5)`.

    A process numbers the GPUs that it sees from 0. In parentheses is what CUDA_VISIBLE_DEVICES, by
    which Ray gives a worker its GPUs, calls this one: an index on its host, or a UUID; without that
    variable, the UUID that `nvidia-smi -L` prints.
    """
    if device.type != "cuda":
        return str(device)
    number = device.index or 0
    visible = [name.strip() for name in os.environ.get(_VISIBLE, "").split(",")]
    known = visible[number] if number < len(visible) else ""
    if not known:
        known = f"GPU-{torch.cuda.get_device_properties(number).uuid}"
    return f"cuda:{number} ({f'GPU {known}' if known.isdecimal() else known})"


def check_gpus(config: EngineConfig) -> None:
    """Raise ConfigError where this process sees fewer GPUs than the replica has ranks, or where
    they could not share memory.
    """
    if config.device == "cpu":
        return
    seen = torch.cuda.device_count()
    if seen < config.tp:
        raise ConfigError(
            f"tp {config.tp} needs as many GPUs on one host, and {seen} are visible here: see "
            "CUDA_VISIBLE_DEVICES, or use a smaller tp"
        )
    check_allocator()


def check_allocator() -> None:
    """Raise ConfigError where torch would take GPU memory in expandable segments.

    The leader allocates the pools of all ranks, and the others open them. Of an expandable segment
    they would have to take file descriptors out of the leader's process (pidfd_getfd), which
    containers forbid (github.com/pytorch/pytorch/issues/165685). UCX cannot open one either: it
    moves state between two GPUs through the host, some hundred times slower
    (github.com/ai-dynamo/nixl/issues/1754).
    """
    for name in _ALLOCATOR_SETTINGS:
        settings = os.environ.get(name, "").replace(" ", "").lower().split(",")
        if "expandable_segments:true" in settings:
            raise ConfigError(
                f"{name} has expandable_segments:True, and workers, like the ranks of one, share "
                "GPU memory by CUDA's handles, which such memory does not have: leave "
                "expandable_segments out"
            )
