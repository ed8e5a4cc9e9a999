"""The memory that a device has free."""

from pathlib import Path

import torch

from baton.core.errors import ConfigError

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def available_memory(device: torch.device) -> int:
    """Return the bytes that could be taken now; on a CPU, within the container's limit if it has
    one.
    """
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(
                f"device is {device}, but torch finds no GPU here: use a torch that was built for "
                "CUDA on a machine with a GPU, or --device cpu"
            )
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    free = _meminfo_available(MEMINFO.read_text() if MEMINFO.is_file() else "")
    limit = CGROUP / "memory.max"
    current = CGROUP / "memory.current"
    if limit.is_file() and current.is_file():
        free = min(free, _cgroup_left(limit.read_text(), current.read_text(), free))
    return free


def _meminfo_available(text: str) -> int:
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise ConfigError(
        f"cannot tell how much memory is free: {MEMINFO} has no MemAvailable; set memory_bytes"
    )


def _cgroup_left(limit: str, current: str, otherwise: int) -> int:
    """Return what the container's limit leaves; `otherwise` without a limit."""
    if limit.strip() == "max":
        return otherwise
    return max(0, int(limit) - int(current))
