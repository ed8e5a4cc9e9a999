"""Checks of what state travels by: NIXL, shared memory, RDMA devices, and proxies."""

import os
import resource
from collections.abc import Mapping, Sequence
from pathlib import Path

from baton.core.errors import ConfigError
from baton.deploy.doctor.finding import Finding, Level, ok
from baton.deploy.doctor.packages import installed
from baton.deploy.doctor.probe import run_probe
from baton.deploy.errors import ProbeError
from baton.transfer.channels.nixl import ucx
from baton.transfer.channels.nixl.ucx import SHARED_MEMORY
from baton.transfer.channels.trusted_network import LOCAL
from baton.transfer.errors import ChannelError

LEAST_AGENTS = 4
"""Ends of streams between one prefill and two decode workers."""
RDMA = Path("/sys/class/infiniband")
PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")

_NO_NIXL = "--channel auto falls back to gRPC, which is slower, and cannot use RDMA"


def check_nixl() -> Finding:
    """Start an agent of NIXL, in a process of its own."""
    if installed("nixl") is None:
        return Finding(
            "NIXL agent", Level.PROBLEM, "nixl is not installed", _NO_NIXL,
            "pip install nixl, or use --channel grpc",
        )  # fmt: skip
    try:
        found = run_probe("baton.deploy.doctor.nixl_probe")
    except ProbeError as err:
        return Finding(
            "NIXL agent", Level.PROBLEM, str(err), _NO_NIXL,
            "do what the message says, or use --channel grpc",
        )  # fmt: skip
    if found["copies"]:
        return ok("NIXL agent", "starts; processes of this machine copy directly (CMA)")
    scope = PTRACE_SCOPE.read_text().strip() if PTRACE_SCOPE.exists() else "unknown"
    return Finding(
        "NIXL agent", Level.WARNING,
        f"starts, but the kernel lets no process copy from another (ptrace_scope {scope})",
        "state between workers of this machine passes through shared memory in pieces, and "
        "prefixes are not read from peers",
        f"echo 0 > {PTRACE_SCOPE} as root; a container needs --cap-add SYS_PTRACE",
    )  # fmt: skip


def check_shared_memory(folder: str = SHARED_MEMORY) -> Finding:
    """Check as a start does that the machine's shared memory has room for NIXL's agents."""
    free = ucx.free_shared_memory(folder)
    told = f"{folder} has {free >> 20} MiB free, room for {free // ucx.AGENT_BYTES} NIXL agents"
    try:
        ucx.check_shared_memory(LEAST_AGENTS, folder)
    except ChannelError:
        return Finding(
            "shared memory", Level.PROBLEM, told,
            "each stream between two workers has an agent at either end; --channel auto falls back "
            "to gRPC where they do not fit, and --channel nixl does not start",
            f"make it larger (mount -o remount,size=1g {folder}; --shm-size of a container), set "
            f"{ucx.network_alone()}, or use --channel grpc",
        )  # fmt: skip
    return ok("shared memory", told)


def check_rdma(folder: Path = RDMA) -> Finding:
    """List the RDMA devices with the state of their ports, and check that memory can be locked."""
    ports = sorted(folder.glob("*/ports/*/state"))
    if not ports:
        return Finding("RDMA", Level.NOTE, "no device; between machines state travels by TCP")
    states = {
        f"{p.parts[-4]}:{p.parts[-2]}": p.read_text().partition(":")[2].strip() for p in ports
    }
    told = ", ".join(f"{port} {state}" for port, state in states.items())
    if "ACTIVE" not in states.values():
        return Finding(
            "RDMA", Level.WARNING, told, "no port is active: state would travel by TCP",
            "check cables, the subnet manager (InfiniBand) and `ip link` (RoCE)",
        )  # fmt: skip
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft != resource.RLIM_INFINITY:
        return Finding(
            "RDMA", Level.PROBLEM, f"{told}; a process may lock {soft >> 10} KiB of memory",
            "NIXL registers a worker's pools, which locks them; the registration fails",
            "ulimit -l unlimited; for systemd LimitMEMLOCK=infinity; for a container "
            "--ulimit memlock=-1",
        )  # fmt: skip
    return ok("RDMA", f"{told}; name one with --nixl-interface where peers are on its network")


def check_ucx(environment: Mapping[str, str] = os.environ) -> Finding:
    """Tell which settings of UCX the environment has, since they change what NIXL may use."""
    names: Sequence[str] = sorted(n for n in environment if n.startswith("UCX_"))
    told = ", ".join(f"{name}={environment[name]}" for name in names)
    try:
        ucx.check_settings(LOCAL.devices, environment)
    except ConfigError:
        return Finding(
            "UCX", Level.WARNING, told,
            "a worker whose interfaces differ from UCX_NET_DEVICES refuses to start NIXL; on this "
            "machine alone, that is lo",
            "unset it, and name interfaces with --nixl-interface",
        )  # fmt: skip
    if ucx.leaves_gpus_out(environment):
        return Finding(
            "UCX", Level.PROBLEM, told,
            "NIXL does not start beside a GPU without a transport that copies from it; --channel "
            "auto falls back to gRPC",
            "add cuda_copy to UCX_TLS, or unset it",
        )  # fmt: skip
    return Finding("UCX", Level.NOTE, told) if told else ok("UCX", "no settings in the environment")
