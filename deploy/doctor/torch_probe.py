"""Prints what torch knows of this machine: its version, the GPUs that it can use, the memory."""

import json

import torch
from torch.distributed import is_nccl_available

from baton.engine.sizing.available import available_memory


def describe() -> dict[str, object]:
    """Return JSON values: version, cuda (what it was built for, or None), nccl, devices, memory.

    nccl: torch has it. devices: name, compute capability, bytes free and in all, and peers, the
    numbers of those whose memory it can reach, of each GPU. memory: bytes that CPU workers could
    take now.
    """
    devices = []
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for index in range(count):
        free, total = torch.cuda.mem_get_info(index)
        major, minor = torch.cuda.get_device_capability(index)
        devices.append(
            {
                "name": torch.cuda.get_device_name(index),
                "capability": f"{major}.{minor}",
                "free": free,
                "total": total,
                "peers": [
                    peer
                    for peer in range(count)
                    if peer != index and torch.cuda.can_device_access_peer(index, peer)
                ],
            }
        )
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": is_nccl_available(),
        "devices": devices,
        "memory": available_memory(torch.device("cpu")),
    }


if __name__ == "__main__":
    print(json.dumps(describe()))
