"""Gauges of the memory that a worker planned and uses."""

import psutil
import torch

from baton.engine.memory.plan import MemoryPlan
from baton.worker.metric_factory import MetricFactory


class MemoryGauges:
    """The memory plan in bytes, and the memory in use."""

    def __init__(self, make: MetricFactory) -> None:
        self._labels = make.labels
        self._budget = make.gauge(
            "memory_budget_bytes", "Memory that the plan divides: --memory-gb, or its default."
        )
        self._planned = make.gauge(
            "memory_planned_bytes", "Memory that the plan gives to each part, at most.", "part"
        )
        self._used = make.gauge(
            "memory_used_bytes",
            "Memory in use: the process's resident memory, or what torch holds on a GPU.",
        )

    def show(self, plan: MemoryPlan) -> None:
        """Export `plan` from now on, and the memory in use whenever it is scraped."""
        self._budget.labels(**self._labels).set(plan.budget_bytes)
        parts = {
            "weights": plan.weight_bytes,
            "steps": plan.step_bytes,
            "request_tables": plan.tables.nbytes,
            "slots": plan.slots * plan.slot_layout.slot_bytes,
            "pages": plan.pages * plan.page_layout.page_bytes,
        }
        for part, nbytes in parts.items():
            self._planned.labels(**self._labels, part=part).set(nbytes)
        device = torch.device(plan.config.device)
        self._used.labels(**self._labels).set_function(lambda: _used_bytes(device))


def _used_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.memory_reserved(device)
    resident: int = psutil.Process().memory_info().rss
    return resident
