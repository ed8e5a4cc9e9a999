"""A process that ends what a Ray of our own leaves behind when its process is killed.

Ray's processes end with ours, but for its agents: they wait minutes for a control store that is
gone, to report to it. This process waits for the end of ours, which is the end of its standard
input. It needs no other module of Baton, to be small.
"""

import os
import signal
import sys
import time
from pathlib import Path

_GRACE_S = 3.0
"""The time that Ray's processes have to end by themselves, as its workers do."""
_KIND = "ray::"


def reap(folder: Path) -> list[int]:
    """Kill the processes of the Ray with this folder. Return their ids."""
    killed = [pid for pid in _ids() if _belongs(pid, folder)]
    for pid in killed:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return killed


def _ids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _belongs(pid: int, folder: Path) -> bool:
    """Return whether a process has a name of Ray's, and writes logs into this folder."""
    try:
        if not Path(f"/proc/{pid}/comm").read_text().startswith(_KIND):
            return False
        links = [f"/proc/{pid}/fd/{name}" for name in os.listdir(f"/proc/{pid}/fd")]
    except OSError:  # it has ended, or is another user's
        return False
    return any(_target(link).startswith(f"{folder}/") for link in links)


def _target(link: str) -> str:
    """Return what a link names; nothing where the file has been closed meanwhile."""
    try:
        return os.readlink(link)
    except OSError:
        return ""


def main() -> None:
    sys.stdin.buffer.read()
    time.sleep(_GRACE_S)
    reap(Path(sys.argv[1]).resolve())


if __name__ == "__main__":
    main()
