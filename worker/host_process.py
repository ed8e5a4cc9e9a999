"""The identity of a worker's process, and checks that a peer on its machine can make."""

import os
from pathlib import Path

from baton.proto import common_pb2
from baton.transfer.channels import registry

_PROC = Path("/proc")
_DEAD = frozenset("ZXx")
"""States of a process that has ended: its memory is gone, and it writes nothing any more."""


def this_process(*, on_device: bool = False) -> common_pb2.HostProcess:
    """Describe this process; the description is empty where there is no /proc.

    on_device: its pools lie in a device's memory.
    """
    status = _stat(os.getpid())
    if status is None:
        return common_pb2.HostProcess()
    ours = os.readlink(_PROC / "self") == str(os.getpid())  # no other pid namespace's /proc
    return common_pb2.HostProcess(
        boot_id=(_PROC / "sys/kernel/random/boot_id").read_text().strip(),
        pid_namespace=os.readlink(_PROC / "self/ns/pid"),
        pid=os.getpid() if ours else 0,
        started=status[1],
        maps_peers=registry.maps_peers(),
        maps_namespaces=registry.maps_namespaces(on_device=on_device),
    )


def may_write_without_us(ours: common_pb2.HostProcess, theirs: common_pb2.HostProcess) -> bool:
    """Return True if `theirs` can write into the memory of `ours` whatever is torn down here.

    It can by shared memory, or by the kernel's copies between processes. It cannot from another
    machine, from another pid namespace, or when it has declared network transports only.
    """
    if not theirs.maps_peers or (theirs.boot_id and theirs.boot_id != ours.boot_id):
        return False
    apart = bool(theirs.pid_namespace) and theirs.pid_namespace != ours.pid_namespace
    return theirs.maps_namespaces or not apart


def unprovable(ours: common_pb2.HostProcess, theirs: common_pb2.HostProcess) -> str | None:
    """Return why no proof is possible that `theirs`, once silent, does not write into `ours`.

    Return None where a teardown or its death proves it.
    """
    if _visible(ours, theirs) or not may_write_without_us(ours, theirs):
        return None
    return (
        "one side may write into the other's memory from a pid namespace that the other cannot "
        "see, so that nothing would prove a lost writer's end; let the two share a pid namespace, "
        "or set UCX_TLS to network transports alone (tcp; tcp,cuda_copy where there is a GPU)"
    )


def visible_pid(ours: common_pb2.HostProcess, theirs: common_pb2.HostProcess) -> int | None:
    """Return the pid of `theirs`, or None where `ours` does not see it in /proc."""
    return theirs.pid if _visible(ours, theirs) else None


def has_died(ours: common_pb2.HostProcess, theirs: common_pb2.HostProcess) -> bool:
    """Return True if the kernel reports the process dead; False if it is not visible from here."""
    if not _visible(ours, theirs):
        return False
    status = _stat(theirs.pid)
    return status is None or status[0] in _DEAD or status[1] != theirs.started


def _visible(ours: common_pb2.HostProcess, theirs: common_pb2.HostProcess) -> bool:
    """Return True if both processes share a pid namespace and see it in /proc."""
    here = (ours.boot_id, ours.pid_namespace)
    return bool(ours.pid and theirs.pid) and (theirs.boot_id, theirs.pid_namespace) == here


def _stat(pid: int) -> tuple[str, int] | None:
    """Return (state, start in clock ticks after the boot), or None if there is no such process."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:  # it ended, also between open and read
        return None
    fields = text.rpartition(")")[2].split()  # the name before may hold anything
    return fields[0], int(fields[19])
