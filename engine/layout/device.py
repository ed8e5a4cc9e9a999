"""The device of an engine, and the CUDA device of a thread."""

import torch


def device_of(name: str) -> torch.device:
    """Return the device that an option names: cpu, cuda or cuda:N.

    cuda is the first that CUDA_VISIBLE_DEVICES names, and has that number: CUDA cannot be set to a
    device without one, and devices are compared with those of tensors, which always have it.
    """
    device = torch.device(name)
    return torch.device("cuda", 0) if device.type == "cuda" and device.index is None else device


def use_device(device: torch.device) -> None:
    """Make `device` the calling thread's current CUDA device; do nothing for a CPU.

    Every thread that touches CUDA or NIXL begins with this. CUDA's current device belongs to a
    thread, and is the first one until it is set: a library that allocates, or opens a context, on
    the current device would take memory of another worker's GPU.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device.index or 0)
