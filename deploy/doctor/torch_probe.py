"""Prints what torch knows of this machine: its version, the GPUs that it can use, the memory."""

import json

import torch

from baton.engine.memory.available import available_memory


def describe() -> dict[str, object]:
    """Return JSON values: version, cuda (what it was built for, or None), devices, memory.

    devices: name, compute capability, and bytes free and in all, of each GPU. memory: bytes that
    CPU workers could take now.
    """
    devices = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        free, total = torch.cuda.mem_get_info(index)
        major, minor = torch.cuda.get_device_capability(index)
        devices.append(
            {
                "name": torch.cuda.get_device_name(index),
                "capability": f"{major}.{minor}",
                "free": free,
                "total": total,
            }
        )
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "devices": devices,
        "memory": available_memory(torch.device("cpu")),
    }


if __name__ == "__main__":
    print(json.dumps(describe()))
