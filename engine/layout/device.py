"""The CUDA device of a thread."""

import torch


def use_device(device: torch.device) -> None:
    """Make `device` the calling thread's current CUDA device; do nothing for a CPU.

    Every thread that touches CUDA or NIXL begins with this. CUDA's current device belongs to a
    thread, and is the first one until it is set: a library that allocates, or opens a context, on
    the current device would take memory of another worker's GPU.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
