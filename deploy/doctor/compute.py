"""Checks of what computes: torch with the GPU and Triton, or the CPU and its compiler."""

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.requirements import Requirement

from baton.deploy.doctor.finding import Finding, Level, ok
from baton.deploy.doctor.first_answer import check_answers
from baton.deploy.doctor.packages import installed, requirements
from baton.deploy.doctor.probe import run_probe
from baton.deploy.errors import ProbeError
from baton.deploy.messages.json_object import JsonObject
from baton.deploy.process.gpu_driver import LEAST_CAPABILITY, has_driver
from baton.kernels.native.build import COMPILER

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_NAMED_PAIRS = 3
LEAST_MEMORY = 2 << 30
"""Bytes: torch, Ray and a tiny model in four processes take as much."""


def check_torch() -> Iterator[Finding]:
    """Check that torch starts, that it can use the GPUs that the machine has, and that engines
    answer on them, or on the CPU where there is none.
    """
    if installed("torch") is None:
        return  # told by the packages' check
    try:
        found = run_probe("baton.deploy.doctor.torch_probe")
    except ProbeError as err:
        yield Finding(
            "torch", Level.PROBLEM, f"does not start: {err}", "every worker computes with it",
            "install it again (pip install --force-reinstall torch); where the GPU's driver hangs, "
            "`nvidia-smi` hangs too: restart the driver or the machine",
        )  # fmt: skip
        return
    gpu = gpu_finding(found, driver=has_driver())
    yield gpu
    if len(found["devices"]) > 1:
        yield ranks_finding(found)
    yield memory_finding(found["memory"])
    if found["cuda"] is not None:
        yield triton_finding(requirements("torch"), installed("triton"))
    yield from check_answers("cuda" if gpu.level is Level.OK else "cpu")


def gpu_finding(found: JsonObject, *, driver: bool) -> Finding:
    """Judge what the torch probe printed. driver: the machine has NVIDIA's kernel driver."""
    devices, cuda = found["devices"], found["cuda"]
    if devices:
        return _devices_finding(devices)
    if not driver:
        build = "built for CPUs" if cuda is None else f"built for CUDA {cuda}"
        return Finding("GPU", Level.NOTE, f"none; torch is {build}, workers use the CPU")
    if cuda is None:
        return Finding(
            "GPU", Level.PROBLEM, f"there is one, but torch {found['version']} is built for CPUs",
            "workers would use the CPU",
            "pip install --force-reinstall torch, from PyPI, which has the CUDA build",
        )  # fmt: skip
    return Finding(
        "GPU", Level.PROBLEM, f"there is a driver, but torch (CUDA {cuda}) finds no GPU",
        "workers would use the CPU",
        "compare `nvidia-smi` with CUDA_VISIBLE_DEVICES; a container needs --gpus all; a driver "
        "older than torch's CUDA needs an update",
    )  # fmt: skip


def _devices_finding(devices: Sequence[JsonObject]) -> Finding:
    told = ", ".join(
        f"{d['name']} ({d['free'] >> 30} of {d['total'] >> 30} GiB free)" for d in devices
    )
    old = [d for d in devices if _capability(d["capability"]) < LEAST_CAPABILITY]
    if not old:
        return ok("GPU", told)
    return Finding(
        "GPU", Level.PROBLEM, f"{told}: compute capability {old[0]['capability']}",
        "kernels use bfloat16 matrices, which need 8.0 (Ampere)",
        "use a newer GPU, or hide this one with CUDA_VISIBLE_DEVICES",
    )  # fmt: skip


def ranks_finding(found: JsonObject) -> Finding:
    """Judge what the ranks of one worker (--tp), a GPU each, need of several GPUs. found: what the
    torch probe printed.
    """
    devices = found["devices"]
    together = f"{len(devices)} GPUs"
    if not found["nccl"]:
        return Finding(
            "GPUs together", Level.PROBLEM, f"{together}, but torch {found['version']} has no NCCL",
            "--tp is refused on GPUs: NCCL adds up what the ranks of a worker compute",
            "pip install --force-reinstall torch, from PyPI, which has NCCL for Linux",
        )  # fmt: skip
    if len({device["name"] for device in devices}) > 1:
        return Finding(
            "GPUs together", Level.WARNING, f"{together} of different kinds",
            "with --tp, the ranks of a worker wait for the slowest, and each takes only as much "
            "memory as the one that has least",
            "give each worker GPUs of one kind: CUDA_VISIBLE_DEVICES, or labels of Ray's nodes",
        )  # fmt: skip
    apart = [
        f"{rank} and {peer}"
        for rank, device in enumerate(devices)
        for peer in range(rank + 1, len(devices))
        if peer not in device["peers"]
    ]
    if apart:
        told = ", ".join(apart[:_NAMED_PAIRS])
        if len(apart) > _NAMED_PAIRS:
            told += f" and {len(apart) - _NAMED_PAIRS} more pairs"
        return Finding(
            "GPUs together", Level.WARNING,
            f"{together}; no access to each other's memory: {told}",
            "with --tp, what the ranks of a worker add up goes through the host's memory, at each "
            "layer of each step",
            "`nvidia-smi topo -p2p r` says why; on PCIe, switch ACS off in the BIOS or start a "
            "virtual machine with peer access; or use GPUs with NVLink between them",
        )  # fmt: skip
    return ok("GPUs together", f"{together}, each reaches the others' memory; NCCL is there")


def memory_finding(available: int) -> Finding:
    """Judge the bytes that CPU workers could take now."""
    told = f"{available / 2**30:.1f} GiB available"
    if available >= LEAST_MEMORY:
        return ok("memory", told)
    return Finding(
        "memory", Level.WARNING, told,
        "Ray ends a worker when the machine's memory is nearly full",
        "end other programs, or give the container more (--memory)",
    )  # fmt: skip


def _capability(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def triton_finding(required: Sequence[Requirement], version: str | None) -> Finding:
    """Compare Triton's version with the one that a CUDA build of torch names.

    required: the requirements of torch.
    """
    wanted = next((r.specifier for r in required if r.name == "triton"), None)
    if version is not None and (wanted is None or wanted.contains(version, prereleases=True)):
        return ok("triton with torch", version)
    return Finding(
        "triton with torch", Level.PROBLEM, f"{version or 'none'}; torch asks for {wanted}",
        "GPU kernels are compiled by it, and torch was tested with that version alone",
        f"pip install 'triton{wanted or ''}'",
    )  # fmt: skip


def check_compiler() -> Finding:
    """Check that the native CPU kernels can be compiled."""
    found = shutil.which(COMPILER)
    if found is not None:
        return ok("compiler", found)
    return Finding(
        "compiler", Level.WARNING, f"no {COMPILER} on PATH",
        "without the native kernels a CPU worker computes in torch, several times slower",
        f"install it (apt-get install {COMPILER}, version 9 or later)",
    )  # fmt: skip


def check_huge_pages(path: Path = HUGE_PAGES) -> Finding:
    """Check that large tensors in the CPU's memory may lie on huge pages."""
    text = path.read_text() if path.exists() else ""
    mode = text.partition("[")[2].partition("]")[0]
    if mode in ("always", "madvise"):
        return ok("huge pages", mode)
    return Finding(
        "huge pages", Level.WARNING, mode or f"no {path}",
        "a CPU worker reads weights from small pages at two thirds of the speed; GPUs do not care",
        f"echo madvise > {path} as root",
    )  # fmt: skip


def check_cores(quota: Path = CPU_QUOTA) -> Finding:
    """Compare the cores that this process may use with the container's quota of CPU time."""
    cores = len(os.sched_getaffinity(0))
    limit, _, period = (quota.read_text() if quota.exists() else "max 1").partition(" ")
    if limit == "max" or int(limit) >= cores * int(period):
        return ok("cores", str(cores))
    allowed = int(limit) / int(period)
    return Finding(
        "cores", Level.WARNING, f"{cores}, but the container may use {allowed:g} of them",
        "workers choose their threads by the cores that they see; more threads than the quota "
        "serves wait for each other",
        f"give --threads so that all workers together have {max(1, int(allowed))}, or pin the "
        "container (--cpuset-cpus)",
    )  # fmt: skip
