"""What the workers of this machine were promised of its memory."""

from collections.abc import Mapping

import psutil
import torch

from baton.engine.memory.available import available_memory


class Promised:
    """Pools take their memory as they fill: what looks free may be somebody's already."""

    def __init__(self) -> None:
        self._budgets: dict[str, int] = {}

    def add(self, worker_id: str, budget_bytes: int) -> None:
        self._budgets[worker_id] = budget_bytes

    def remove(self, worker_id: str) -> None:
        self._budgets.pop(worker_id, None)

    def left(self, pids: Mapping[str, int]) -> int:
        """Bytes that one more worker may have: as many as another has, if they are free and
        nobody's.

        pids: of the workers that run, by worker_id.
        """
        free = available_memory(torch.device("cpu"))
        taken = {name: _resident(pid) for name, pid in pids.items()}
        due = sum(max(0, budget - taken.get(name, 0)) for name, budget in self._budgets.items())
        return max(0, min(max(self._budgets.values()), free - due))


def _resident(pid: int) -> int:
    """Bytes that a process has taken; 0 where it has just ended."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.NoSuchProcess:
        return 0
