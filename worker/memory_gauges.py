"""Gauges of the memory that a worker planned and uses."""

from collections.abc import Sequence
from functools import partial

import psutil
import torch

from baton.engine.layout.device import device_of
from baton.engine.sizing.plan import MemoryPlan
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
        self._ranks = make.gauge(
            "rank_memory_used_bytes",
            "Resident memory of each tensor-parallel rank's process, where there are several; "
            "what two of them share counts for both.",
            "rank",
        )
        self._rank_cpu = make.gauge(
            "rank_cpu_seconds",
            "Processor time that each tensor-parallel rank's process has used since its start, "
            "where there are several; 0 when it has ended.",
            "rank",
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
        device = device_of(plan.config.device)
        self._used.labels(**self._labels).set_function(lambda: _used_bytes(device))

    def show_ranks(self, processes: Sequence[int]) -> None:
        """Export the memory in use and the processor time of each rank's process, by rank,
        whenever they are scraped."""
        for rank, process in enumerate(processes):
            gauge = self._ranks.labels(**self._labels, rank=str(rank))
            gauge.set_function(partial(_resident_bytes, process))
            gauge = self._rank_cpu.labels(**self._labels, rank=str(rank))
            gauge.set_function(partial(_cpu_seconds, process))


def _used_bytes(device: torch.device) -> int:
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else _resident_bytes()


def _resident_bytes(process: int | None = None) -> int:
    """Return the resident memory of a process, this one by default; 0 if it has ended."""
    try:
        resident: int = psutil.Process(process).memory_info().rss
    except psutil.NoSuchProcess:
        return 0
    return resident


def _cpu_seconds(process: int) -> float:
    """Return the processor time that a process has used; 0 if it has ended."""
    try:
        times = psutil.Process(process).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)
