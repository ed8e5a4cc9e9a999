"""The choice of the device that workers compute on, and the reasons against a GPU."""

import importlib.util
from typing import NamedTuple

import torch

from baton.deploy.cluster.gpu_demand import GpuDemand
from baton.deploy.process.gpu_driver import LEAST_CAPABILITY, has_driver
from baton.engine.settings.choices import AUTO_DEVICE, WeightFormat

ONE = GpuDemand((1,))


class ChosenDevice(NamedTuple):
    """The device of workers, why it was taken, or what is to be told of it, and what each worker
    asks of GPUs."""

    name: str
    why: str
    gpus_per_worker: float | None


def chosen_device(given: str, weights: WeightFormat, demand: GpuDemand) -> ChosenDevice:
    """Return the device that the option --device names, and why it was taken; the reason is empty
    where the option names one that no workers share.

    demand: what all workers ask of this machine's GPUs.
    """
    if given not in (AUTO_DEVICE, "cuda"):
        return ChosenDevice(given, "", demand.each)
    if given == AUTO_DEVICE and weights is WeightFormat.INT8:
        return ChosenDevice("cpu", f"--weight-format {weights} is for the CPU", demand.each)
    against = unusable(demand)
    if against is not None:
        device = "cpu" if given == AUTO_DEVICE else given
        return ChosenDevice(device, against if device == "cpu" else "", demand.each)
    on_gpus = demand.on(torch.cuda.device_count())
    told = [torch.cuda.get_device_name(0)] if given == AUTO_DEVICE else []
    if on_gpus != demand:
        told.append(
            f"{on_gpus.sharers} workers share a GPU and its memory: --gpus-per-worker 1 gives each "
            "its own, where there are as many"
        )
    return ChosenDevice("cuda", "; ".join(told), on_gpus.each)


def unusable(demand: GpuDemand = ONE, number: int = 0) -> str | None:
    """Return why workers cannot compute on this machine's GPUs, and what would help; None where
    they can.

    demand: what they ask for. number: of the GPU to look at, as CUDA counts them.
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
    if count < demand.on(count).needed:
        return _too_few(demand, count)
    capability = torch.cuda.get_device_capability(number)
    if capability < LEAST_CAPABILITY:
        name, found = torch.cuda.get_device_name(number), ".".join(map(str, capability))
        return f"{name} has compute capability {found}, and kernels need 8.0 (Ampere)"
    if importlib.util.find_spec("triton") is None:
        return "triton, which compiles the kernels for GPUs, is not installed: pip install triton"
    return None


def _too_few(demand: GpuDemand, count: int) -> str:
    here = f"and {count} {'is' if count == 1 else 'are'} here"
    if not demand.divisible:
        return (
            f"workers need {demand.needed} GPUs, one for each of their ranks, {here}: "
            "--prefill, --decode and --tp say how many are needed"
        )
    workers, each = len(demand.ranks), demand.each or 1.0
    return (
        f"{workers} workers with --gpus-per-worker {each:g} need {demand.needed} GPUs, "
        f"{here}: --gpus-per-worker {demand.parts(count):g} divides what is here among them, or "
        "start fewer workers (--prefill, --decode)"
    )
