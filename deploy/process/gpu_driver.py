"""The signs of NVIDIA's driver on this machine, which are found without torch."""

from pathlib import Path

from baton.deploy.errors import StartError

LEAST_CAPABILITY = (8, 0)
"""bfloat16 matrices, which every kernel uses, came with this compute capability (Ampere)."""
SIGNS = tuple(map(Path, ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")))
"""Files of the driver: on Linux, in a container, and in Windows' Linux."""


def has_driver() -> bool:
    """Return True where this machine, or this container, has NVIDIA's driver."""
    return any(sign.exists() for sign in SIGNS)


def check_driver(device: str) -> None:
    """Raise StartError for a GPU on a machine that has no driver."""
    if device.partition(":")[0] == "cuda" and not has_driver():
        raise StartError(
            f"--device {device}: this machine has no NVIDIA driver: use --device cpu, or give the "
            "container its GPUs (docker run --gpus all)"
        )
