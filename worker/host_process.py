"""Where a worker runs, and whether it still does: what a peer on the same machine can see."""

import os
from pathlib import Path

from baton.proto import common_pb2
from baton.transfer.nixl_agent import maps_namespaces, maps_peers

_PROC = Path("/proc")
_DEAD = frozenset("ZXx")
"""States of a process that has ended: its memory is gone, and it writes nothing any more."""


def this_process(*, on_device: bool = False) -> common_pb2.HostProcess:
    """Empty where there is no /proc: then nothing is concluded from it.

    on_device: its pools lie in a device's memory."""
    status = _stat(os.getpid())
    if status is None:
        return common_pb2.HostProcess()
    ours = os.readlink(_PROC / "self") == str(os.getpid())  # no other pid namespace's /proc
    return common_pb2.HostProcess(
        boot_id=(_PROC / "sys/kernel/random/boot_id").read_text().strip(),
        pid_namespace=os.readlink(_PROC / "self/ns/pid"),
        pid=os.getpid() if ours else 0,
        started=status[1],
        maps_peers=maps_peers(),
        maps_namespaces=maps_namespaces(on_device=on_device),
    )


def may_write_without_us(ours: common_pb2.HostProcess, theirs: common_pb2.HostProcess) -> bool:
    """Whether `theirs` may reach into the memory of `ours` by itself, whatever is torn down here:
    shared memory, or the kernel's copies between processes. Another machine says no, its own word
    that it uses the network alone, or another pid namespace, where it cannot name us."""
    if not theirs.maps_peers or (theirs.boot_id and theirs.boot_id != ours.boot_id):
        return False
    apart = bool(theirs.pid_namespace) and theirs.pid_namespace != ours.pid_namespace
    return theirs.maps_namespaces or not apart


def unprovable(ours: common_pb2.HostProcess, theirs: common_pb2.HostProcess) -> str | None:
    """Why nothing could prove that `theirs`, once silent, does not write into `ours`: neither a
    teardown nor its death. None where something does."""
    if _visible(ours, theirs) or not may_write_without_us(ours, theirs):
        return None
    return (
        "one side may write into the other's memory from a pid namespace that the other cannot "
        "see, so that nothing would prove a lost writer's end; let the two share a pid namespace, "
        "or set UCX_TLS to network transports alone"
    )


def has_died(ours: common_pb2.HostProcess, theirs: common_pb2.HostProcess) -> bool:
    """Whether the kernel says so. False where this process cannot see that one."""
    if not _visible(ours, theirs):
        return False
    status = _stat(theirs.pid)
    return status is None or status[0] in _DEAD or status[1] != theirs.started


def _visible(ours: common_pb2.HostProcess, theirs: common_pb2.HostProcess) -> bool:
    """Whether the two number processes alike, and see that in /proc."""
    here = (ours.boot_id, ours.pid_namespace)
    return bool(ours.pid and theirs.pid) and (theirs.boot_id, theirs.pid_namespace) == here


def _stat(pid: int) -> tuple[str, int] | None:
    """(state, start in clock ticks after the boot); None where there is no such process."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:  # it ended, also between open and read
        return None
    fields = text.rpartition(")")[2].split()  # the name before may hold anything
    return fields[0], int(fields[19])
