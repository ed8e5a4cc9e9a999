"""A description of the machine that numbers were measured on."""

import os
import platform
from pathlib import Path

import psutil
import torch


def describe() -> dict[str, object]:
    """Return JSON values: cpu, cores, memory, gpu, and the versions that affect speed."""
    return {
        "cpu": _cpu(),
        "cores": cores(),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
    }


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _cpu() -> str:
    """Return the CPU's name if the kernel gives one, else the architecture."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
