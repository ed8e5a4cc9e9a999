"""From the last layer at the prefill worker to the first decode step, in a real cluster."""

import random
import tempfile
from pathlib import Path

from baton.bench import load, scrape
from baton.bench.checkpoints import GRANITE_SMALL, write_checkpoint
from baton.bench.contract import summarise
from baton.bench.load import Load
from baton.deploy.cluster import Cluster
from baton.deploy.cluster_config import ClusterConfig
from baton.engine.config import EngineConfig

METRIC = "baton_prefill_to_decode_seconds"
INPUT_LEN, OUTPUT_LEN = 512, 8


def measure(requests: int, repeats: int, rng: random.Random) -> dict[str, float]:
    """prefill_to_decode_ms: the mean of `requests` requests, one at a time so that the rank is
    idle, on small Granite; the median of `repeats` rounds."""
    shape = Load(requests, 1, INPUT_LEN, OUTPUT_LEN)
    with tempfile.TemporaryDirectory() as folder:
        model = write_checkpoint(Path(folder) / "granite-small", GRANITE_SMALL)
        with Cluster(ClusterConfig(EngineConfig(model))) as cluster:
            rounds = [_round(cluster, shape, rng) for _ in range(repeats + 1)]
    return summarise(rounds[1:])  # the first compiles and connects


def _round(cluster: Cluster, shape: Load, rng: random.Random) -> dict[str, float]:
    metrics = [started.metrics_address for started in cluster.workers.values()]
    cluster.router.flush_cache()
    before = _sample(metrics, "sum"), _sample(metrics, "count")
    prompts = shape.draw(rng, GRANITE_SMALL["vocab_size"])
    load.play(cluster.http_url, shape, prompts)
    took, count = _sample(metrics, "sum") - before[0], _sample(metrics, "count") - before[1]
    return {"prefill_to_decode_ms": 1e3 * took / count}


def _sample(addresses: list[str], what: str) -> float:
    return scrape.total(addresses, f"{METRIC}_{what}")
