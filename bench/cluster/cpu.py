"""The CPU time of a cluster's processes: by their part in it, and while they wait for work."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from urllib.parse import urlsplit

import psutil

from baton.core.role import Role
from baton.deploy.cluster.cluster import Cluster

CLIENT, ROUTER, RANK, REST = "client", "router", "rank", "rest"
"""This process; the router; the decode ranks; prefill workers, Ray and the bare engines."""
WINDOW_S = 5.0


class ClusterCpu:
    """Counts CPU seconds by part. The cluster must not grow or shrink meanwhile."""

    def __init__(self, cluster: Cluster) -> None:
        client = psutil.Process()
        pids = {w["worker_id"]: int(w["pid"]) for w in cluster.router.server_info()["workers"]}
        ranks = {pids[member.worker_id] for member in cluster.members(Role.DECODE)}
        router = _listener(urlsplit(cluster.http_url).port or 0)
        others = {child.pid for child in client.children(recursive=True)} - ranks - {router}
        parts = {CLIENT: [client.pid], ROUTER: [router], RANK: ranks, REST: others}
        self._parts = {part: _processes(of) for part, of in parts.items()}

    def seconds(self) -> Counter[str]:
        """Return the CPU seconds of each part so far."""
        return Counter(
            {
                part: sum(_spent(process) for process in processes)
                for part, processes in self._parts.items()
            }
        )


def _listener(port: int) -> int:
    """Return the process that listens on a port of this machine."""
    for found in psutil.net_connections("tcp"):
        if found.status != psutil.CONN_LISTEN or not found.laddr or not found.pid:
            continue
        if found.laddr.port == port:
            return int(found.pid)
    raise psutil.NoSuchProcess(-1, f"nothing that we may see listens on port {port}")


def _processes(pids: Iterable[int]) -> list[psutil.Process]:
    found = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return found


def _spent(process: psutil.Process) -> float:
    with suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0


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
