"""The shares of this machine's memory that its workers were promised."""

from collections.abc import Mapping

import psutil
import torch

from baton.engine.sizing.available import available_memory


class MemoryBudget:
    """The promised shares.

    Pools take their memory as they fill, so free memory may already be promised.
    """

    def __init__(self) -> None:
        self._budgets: dict[str, int] = {}

    @property
    def budgets(self) -> dict[str, int]:
        """Return the promised bytes by worker_id."""
        return dict(self._budgets)

    def add(self, worker_id: str, budget_bytes: int) -> None:
        self._budgets[worker_id] = budget_bytes

    def remove(self, worker_id: str) -> None:
        self._budgets.pop(worker_id, None)

    def left(self, pids: Mapping[str, int], beside: int = 0) -> int:
        """Return the bytes for one more worker: another's share, if so much is free and not
        promised.

        pids: the process ids of the running workers, by worker_id. beside: the bytes that each
        worker takes beside its share, as for copies of prefixes.
        """
        free = available_memory(torch.device("cpu"))
        taken = {name: _resident(pid) for name, pid in pids.items()}
        due = beside + sum(
            max(0, budget + beside - taken.get(name, 0)) for name, budget in self._budgets.items()
        )
        return max(0, min(max(self._budgets.values()), free - due))


def _resident(pid: int) -> int:
    """Return the bytes that a process and its ranks hold; 0 if it has just ended."""
    try:
        worker = psutil.Process(pid)
        return sum(int(each.memory_info().rss) for each in (worker, *worker.children()))
    except psutil.NoSuchProcess:
        return 0
