"""The processes of a Ray of our own, children of this process."""

from collections.abc import Iterable
from contextlib import suppress

import psutil

_VITAL = {"gcs_server": "control store", "raylet": "raylet"}
"""Processes without which nothing starts a worker again, and their names in Ray's manual."""


class RayProcesses:
    """Ray's processes and all that they have started, as they are when this is made."""

    def __init__(self, before: Iterable[psutil.Process] = ()) -> None:
        """before: children of this process that are not Ray's."""
        self._others = set(before)
        self._all = psutil.Process().children(recursive=True)
        self._vital = [(p, _VITAL[name]) for p in self._all if (name := _name(p)) in _VITAL]

    def lost(self) -> str:
        """Name the first vital process that has ended; empty while all run."""
        return next((f"{name} (pid {p.pid})" for p, name in self._vital if _has_ended(p)), "")

    def kill_helpers(self) -> None:
        """Kill the processes that Ray would otherwise wait for at its end, a second for each.

        They watch, log and report; no worker needs them.
        """
        helpers = set(self._all) - self._others
        for process in psutil.Process().children():
            if process in helpers and _name(process) not in _VITAL:
                with suppress(psutil.NoSuchProcess):
                    process.kill()

    def kill(self) -> None:
        """Kill every process, those that have started since then too."""
        for process in {*self._all, *psutil.Process().children(recursive=True)}:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


def _has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
