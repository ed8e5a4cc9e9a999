"""The processor time that workers spend on hand-offs, beside that of their engines."""

import random

import psutil

from baton.bench.cluster import load, scrape
from baton.bench.cluster.load import Load
from baton.core.role import ROUTED_ROLES, Role
from baton.deploy.cluster.cluster import Cluster

SHAPE = Load(requests=200, concurrency=16, input_len=32, output_len=2)
"""Short prompts and answers: nearly all is hand-off, as with agents' turns that are cached."""
ENGINE = "baton_worker_engine_cpu_seconds"
PREFILLS = "baton_worker_prefills_total"


def handoff_cpu_ms(
    cluster: Cluster, vocab_size: int, rng: random.Random, shape: Load = SHAPE
) -> dict[str, float]:
    """Return the milliseconds of a hand-off on each side: the CPU time of all workers of a role,
    without that of their engines' threads, divided by the hand-offs of the load.

    Kernels' own threads count too: use one thread a worker. What ranks compute themselves counts
    for ranks without being a hand-off: use `--prefill-here off`. Raises ValueError if nothing was
    handed over.
    """
    before, handed = _beside_engines(cluster), _handed_over(cluster)
    load.play(cluster.address, shape, shape.draw(rng, vocab_size))
    after = _beside_engines(cluster)
    if not (count := _handed_over(cluster) - handed):
        raise ValueError("no prompt was handed over: ranks computed all of them")
    return {
        f"cpu_ms_handoff_{role.value}": max(after[role] - before[role], 0.0) * 1e3 / count
        for role in ROUTED_ROLES
    }


def _beside_engines(cluster: Cluster) -> dict[Role, float]:
    """Return the CPU seconds of the workers of each role, without their engines' threads."""
    pids = {w["worker_id"]: int(w["pid"]) for w in cluster.router.server_info()["workers"]}
    spent = dict.fromkeys(ROUTED_ROLES, 0.0)
    for role in ROUTED_ROLES:
        for member in cluster.members(role):
            name = member.worker_id
            times = psutil.Process(pids[name]).cpu_times()
            engine_s = scrape.total([cluster.router.metrics(name)], ENGINE)
            spent[role] += times.user + times.system - engine_s
    return spent


def _handed_over(cluster: Cluster) -> float:
    pages = map(cluster.router.metrics, cluster.workers)
    return scrape.total(pages, PREFILLS, outcome="handed_over")
