"""The choice of the device that workers compute on, and the reasons against a GPU."""

import importlib.util

import torch

from baton.deploy.process.gpu_driver import LEAST_CAPABILITY, has_driver
from baton.engine.settings.choices import AUTO_DEVICE, WeightFormat


def chosen_device(given: str, weights: WeightFormat, gpus: float) -> tuple[str, str]:
    """Return the device that the option --device names, and why it was taken; the reason is empty
    where the option names one.

    gpus: those of this machine that all workers need.
    """
    if given != AUTO_DEVICE:
        return given, ""
    if weights is WeightFormat.INT8:
        return "cpu", "--weight-format int8 is for the CPU"
    against = unusable(gpus)
    if against is None:
        return "cuda", torch.cuda.get_device_name(0)
    return "cpu", against


def unusable(gpus: float = 1.0, number: int = 0) -> str | None:
    """Return why workers cannot compute on this machine's GPUs, and what would help; None where
    they can.

    gpus: those that they need. number: of the one to look at, as CUDA counts them.
    """
    if not has_driver():
        return "this machine has no NVIDIA driver"
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built for CPUs: install it from PyPI"
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        return (
            f"torch finds no GPU: the driver may be older than torch's CUDA {torch.version.cuda}, "
            "or CUDA_VISIBLE_DEVICES hides it; compare `nvidia-smi`"
        )
    if number >= count:
        return f"this machine has {count} CUDA devices"
    if count < gpus:
        return (
            f"workers need {gpus:g} GPUs, and {count} are here: --gpus-per-worker with a part of 1 "
            "shares one, and --prefill, --decode and --tp say how many are needed"
        )
    capability = torch.cuda.get_device_capability(number)
    if capability < LEAST_CAPABILITY:
        name, found = torch.cuda.get_device_name(number), ".".join(map(str, capability))
        return f"{name} has compute capability {found}, and kernels need 8.0 (Ampere)"
    if importlib.util.find_spec("triton") is None:
        return "triton, which compiles the kernels for GPUs, is not installed: pip install triton"
    return None
