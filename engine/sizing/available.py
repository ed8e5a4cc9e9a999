"""The memory that a device has free, and that the machine has in all."""

from pathlib import Path

import torch

from baton.core.errors import ConfigError
from baton.engine.sizing.control_groups import memory_groups
from baton.engine.sizing.readable import readable

MEMINFO = Path("/proc/meminfo")


def available_memory(device: torch.device) -> int:
    """Return the bytes that could be taken now; on a CPU, within the limits of the container or
    service that this process is in.
    """
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(
                f"device is {device}, but torch finds no GPU here: use a torch that was built for "
                "CUDA on a machine with a GPU, or --device cpu"
            )
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    left = _meminfo("MemAvailable")
    if left is None:
        raise ConfigError(
            f"cannot tell how much memory is free: {MEMINFO} has no MemAvailable; set memory_bytes"
        )
    return min([left, *(group.left for group in memory_groups())])


def card_memory(device: torch.device) -> int | None:
    """Return all bytes of a GPU's memory, those in use among them; None for a CPU."""
    if device.type != "cuda":
        return None
    _, total = torch.cuda.mem_get_info(device)
    return int(total)


def total_memory() -> int | None:
    """Return the bytes of this machine's memory, within the limits of the container or service that
    this process is in; None if neither is known.
    """
    total = _meminfo("MemTotal")
    known = [] if total is None else [total]
    return min([*known, *(group.limit for group in memory_groups())], default=None)


def check_budget(budget_bytes: int, asker: str) -> None:
    """Raise ConfigError for a budget beyond all memory of this machine. asker: whose it is."""
    total = total_memory()
    if total is not None and budget_bytes > total:
        raise ConfigError(
            f"{asker} may take {readable(budget_bytes)}, but this machine has {readable(total)} of "
            "memory in all: lower memory_bytes (--memory-gb), or start fewer workers here"
        )


def _meminfo(field: str) -> int | None:
    """Return a field of the kernel's account of memory, in bytes; None if it has none."""
    for line in MEMINFO.read_text().splitlines() if MEMINFO.is_file() else ():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    return None
