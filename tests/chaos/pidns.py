"""Worker processes in pid namespaces of their own, as in containers: nobody but their ancestors
sees them. Linux, root."""

import ctypes
import os
from multiprocessing.connection import Connection

from chaos.netns import refused_to_unshare

CLONE_NEWNS, CLONE_NEWPID = 0x00020000, 0x20000000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
_libc = ctypes.CDLL(None, use_errno=True)


def unavailable() -> str | None:
    """Return why there can be no pid namespaces here; None where there can."""
    if os.geteuid() != 0:
        return "pid namespaces need root"
    return refused_to_unshare("pid")


def enter(conn: Connection) -> None:
    """Returns in a grandchild, the second process of a new namespace, with a /proc of its own: the
    first, like any init, cannot stop or kill itself. Both wait for it here, and hold no `conn`, so
    that its end is heard at once. This process has one thread yet."""
    _call("unshare", CLONE_NEWPID)
    for _ in range(2):
        child = os.fork()
        if child:
            conn.close()
            _, status = os.waitpid(child, 0)
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def mount_proc() -> None:
    """Once the pid that others know this process by has been read from the /proc before."""
    _call("unshare", CLONE_NEWNS)
    _call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    _call("mount", b"proc", b"/proc", b"proc", 0, None)


def pid_in_proc() -> int:
    """This process's pid in the namespace whose /proc this is."""
    return int(os.readlink("/proc/self"))


def _call(function: str, *args: object) -> None:
    if getattr(_libc, function)(*args) != 0:
        raise OSError(ctypes.get_errno(), f"{function} for a pid namespace")
