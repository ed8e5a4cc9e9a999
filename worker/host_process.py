"""Where a worker runs, and whether it still does: what a peer on the same machine can see."""

import os
from pathlib import Path

from baton.proto import common_pb2
from baton.transfer.nixl_agent import maps_peers

_PROC = Path("/proc")
_DEAD = frozenset("ZXx")
"""States of a process that has ended: its memory is gone, and it writes nothing any more."""


def this_process() -> common_pb2.HostProcess:
    """Empty where there is no /proc: then nothing is concluded from it."""
    status = _stat(os.getpid())
    if status is None:
        return common_pb2.HostProcess()
    return common_pb2.HostProcess(
        boot_id=(_PROC / "sys/kernel/random/boot_id").read_text().strip(),
        pid_namespace=os.readlink(_PROC / "self/ns/pid"),
        pid=os.getpid(),
        started=status[1],
        maps_peers=maps_peers(),
    )


def may_write_without_us(ours: common_pb2.HostProcess, theirs: common_pb2.HostProcess) -> bool:
    """Whether `theirs` may reach into the memory of `ours` by itself, whatever is torn down here:
    shared memory, or the kernel's copies between processes. Only another machine, or its own word
    that it uses the network alone, says no."""
    elsewhere = bool(theirs.boot_id) and theirs.boot_id != ours.boot_id
    return theirs.maps_peers and not elsewhere


def has_died(ours: common_pb2.HostProcess, theirs: common_pb2.HostProcess) -> bool:
    """Whether the kernel says so. False where this process cannot see that one."""
    if not theirs.pid or (theirs.boot_id, theirs.pid_namespace) != (
        ours.boot_id,
        ours.pid_namespace,
    ):
        return False
    status = _stat(theirs.pid)
    return status is None or status[0] in _DEAD or status[1] != theirs.started


def _stat(pid: int) -> tuple[str, int] | None:
    """(state, start in clock ticks after the boot); None where there is no such process."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:  # it ended, also between open and read
        return None
    fields = text.rpartition(")")[2].split()  # the name before may hold anything
    return fields[0], int(fields[19])
