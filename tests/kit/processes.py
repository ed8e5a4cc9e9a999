"""Waiting for the end of processes that are not this one's own children."""

from collections.abc import Collection

import psutil
from kit.polling import DEADLINE_S, wait_until


def has_ended(process: psutil.Process) -> bool:
    """Return True for a process that is gone, or a zombie: one whose parent has ended is that until
    the machine's first process looks for such, which some do once a minute.
    """
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def until_ended(processes: Collection[psutil.Process], deadline_s: float = DEADLINE_S) -> None:
    """Wait until all have ended. Raises AssertionError with those that do not in time."""
    wait_until(
        lambda: all(map(has_ended, processes)),
        lambda: [process for process in processes if not has_ended(process)],
        deadline_s,
    )
