"""The processor time that workers spend on hand-offs, beside that of their engines."""

import random
from collections import Counter

from baton.bench.cluster import load, scrape
from baton.bench.cluster.load import Load
from baton.bench.cluster.thread_cpu import thread_seconds
from baton.core.role import ROUTED_ROLES, Role
from baton.deploy.cluster.cluster import Cluster

SHAPE = Load(requests=200, concurrency=16, input_len=32, output_len=2)
"""Short prompts and answers: nearly all is hand-off, as with agents' turns that are cached."""
ENGINE = frozenset({"engine", "forward"})
"""The names of the threads that compute, those of their kernels included."""
PREFILLS = "baton_worker_prefills_total"


def handoff_cpu_ms(
    cluster: Cluster, vocab_size: int, rng: random.Random, shape: Load = SHAPE
) -> dict[str, float]:
    """Return the milliseconds of a hand-off on each side, by the contract's keys: the CPU time of
    all workers of a role, without that of their engines' threads, divided by the hand-offs.

    Workers whose ranks compute prompts have other work as well: nothing is returned if nothing was
    handed over.
    """
    before, handed = _beside_engines(cluster), _handed_over(cluster)
    load.play(cluster.address, shape, shape.draw(rng, vocab_size))
    spent = {role: after - before[role] for role, after in _beside_engines(cluster).items()}
    count = _handed_over(cluster) - handed
    if not count:
        return {}
    return {f"cpu_ms_handoff_{role.value}": s * 1e3 / count for role, s in spent.items()}


def _beside_engines(cluster: Cluster) -> dict[Role, float]:
    """Return the CPU seconds of the workers of each role, without their engines' threads."""
    pids = {w["worker_id"]: int(w["pid"]) for w in cluster.router.server_info()["workers"]}
    spent: dict[Role, float] = {}
    for role in ROUTED_ROLES:
        threads: Counter[str] = Counter()
        for member in cluster.members(role):
            threads += thread_seconds(pids[member.worker_id], {})
        spent[role] = sum(s for name, s in threads.items() if name not in ENGINE)
    return spent


def _handed_over(cluster: Cluster) -> float:
    pages = map(cluster.router.metrics, cluster.workers)
    return scrape.total(pages, PREFILLS, outcome="handed_over")
