"""The settings of UCX, which moves NIXL's bytes: its devices, its transports and what they need."""

import ctypes
import errno
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from baton.core.errors import ConfigError
from baton.transfer.errors import ChannelError

SHARED_MEMORY = "/dev/shm"
AGENT_BYTES = 5 << 20
"""Shared memory of one agent. 4.1 MiB were measured, and as much again outside of /dev/shm."""

DRIVER = Path("/proc/driver/nvidia/version")
_DEVICES = "UCX_NET_DEVICES"
_NETWORK = frozenset(
    {"tcp", "rc", "rc_x", "rc_v", "dc", "dc_x", "ud", "ud_x", "ud_v", "ib", "self"}
    | {"cuda_copy", "gdr_copy"}  # between a process's own GPU and host memory
)
_COPYING = frozenset({"cma", "sm", "shm", "all"})


def confine(devices: Sequence[str]) -> None:
    """Let UCX listen and connect on `devices` alone, in this process from now on.

    NIXL's own parameter for that knows RDMA devices only, so UCX's variable is set. Raises
    ConfigError as `check_settings` does.
    """
    check_settings(devices)
    os.environ.setdefault(_DEVICES, ",".join(devices))


def check_settings(devices: Sequence[str], environment: Mapping[str, str] = os.environ) -> None:
    """Raise ConfigError where the environment names other devices than `devices`."""
    named = environment.get(_DEVICES)
    if named is not None and set(named.replace(" ", "").split(",")) != set(devices):
        raise ConfigError(
            f"{_DEVICES} is {named}, but NIXL may listen on {', '.join(devices)} alone: it asks "
            "nobody who they are. Unset the variable, name devices on which you trust everybody "
            "with --nixl-interface, or use --channel grpc"
        )


def network_alone() -> str:
    """Return the setting of UCX that rules shared memory out on this machine.

    NIXL refuses to start beside a GPU where UCX_TLS names no transport that copies from it.
    """
    return "UCX_TLS=tcp,cuda_copy" if DRIVER.exists() else "UCX_TLS=tcp"


def free_shared_memory(folder: str = SHARED_MEMORY) -> int:
    """Return the bytes of shared memory that this machine has left."""
    found = os.statvfs(folder) if os.path.isdir(folder) else None
    return found.f_bavail * found.f_frsize if found else 0


def check_shared_memory(agents: int = 1, folder: str = SHARED_MEMORY) -> None:
    """Raise ChannelError where `folder` has no room for as many new agents.

    UCX maps files there without a check, and its process dies when it writes to them.
    """
    if not maps_peers():
        return
    free = free_shared_memory(folder)
    needed = agents * AGENT_BYTES
    if free < needed:
        raise ChannelError(
            f"{folder} has {free >> 20} MiB free, and NIXL needs {needed >> 20} MiB there: make it "
            f"larger (--shm-size of a container), set {network_alone()}, or use --channel grpc"
        )


def maps_peers() -> bool:
    """Return True when UCX may write into other processes of this machine without their help.

    It does so by the kernel's copies (CMA), shared mappings and CUDA IPC. UCX's own variable
    UCX_TLS rules that out where it names network transports only.
    """
    named = _transports()
    return not named <= _NETWORK or named == {""}


def maps_namespaces(*, on_device: bool) -> bool:
    """Return True when UCX may do so across pid namespaces too.

    CUDA IPC, XPMEM and KNEM may. CMA may not: it names processes by pid, and UCX considers a
    process of another namespace out of reach.
    """
    modules = any(os.path.exists(device) for device in ("/dev/xpmem", "/dev/knem"))
    return maps_peers() and (on_device or modules)


def copies_by_kernel(pid: int) -> bool:
    """Return True when UCX joins this process and `pid` by the kernel's copies (CMA).

    A read by CMA needs nothing of the process that is read from. Any other read of host memory is
    made of messages that this process must answer.
    """
    named = _transports()
    if all_but := {name.removeprefix("^") for name in named} - named:  # ^a,b: all but a and b
        allowed = not (all_but | named) & _COPYING
    else:
        allowed = bool(named & (_COPYING | {""}))
    return allowed and _may_copy(pid)


def leaves_gpus_out(environment: Mapping[str, str]) -> bool:
    """Return True where the environment keeps UCX from the memory of this machine's GPUs, so that
    NIXL refuses to start."""
    named = environment.get("UCX_TLS", "all").replace(" ", "")
    if named.startswith("^") or not DRIVER.exists():
        return False
    return not {"all", "cuda", "cuda_copy"} & set(named.split(","))


def _may_copy(pid: int) -> bool:
    """Ask the kernel for one byte at address 0 of `pid`: only who may copy learns that it is not
    mapped."""
    byte = ctypes.c_char()
    here = (ctypes.c_size_t * 2)(ctypes.addressof(byte), 1)  # a struct iovec
    there = (ctypes.c_size_t * 2)(0, 1)
    libc = ctypes.CDLL(None, use_errno=True)
    copied = libc.process_vm_readv(pid, here, 1, there, 1, 0)
    return int(copied) == -1 and ctypes.get_errno() == errno.EFAULT


def _transports() -> set[str]:
    """Return the words of UCX_TLS; one empty word where it is not set."""
    return set(os.environ.get("UCX_TLS", "").replace(" ", "").split(","))
