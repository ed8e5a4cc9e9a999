"""CPU use of processes that wait for work."""

import time
from collections.abc import Mapping

import psutil

WINDOW_S = 5.0


def cpu_percent(pids: Mapping[str, int]) -> dict[str, float]:
    """Return each process's use of one core over WINDOW_S, in percent.

    pids: process ids by name.
    """
    processes = {name: psutil.Process(pid) for name, pid in pids.items()}
    before = {name: _seconds(process) for name, process in processes.items()}
    began = time.monotonic()
    time.sleep(WINDOW_S)
    elapsed = time.monotonic() - began
    return {
        name: 100 * (_seconds(process) - before[name]) / elapsed
        for name, process in processes.items()
    }


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
