"""The time from a prefill worker's last layer to the first decode step, in a real cluster."""

import random
import tempfile
from pathlib import Path
from statistics import median

from baton.bench.checkpoints import GRANITE_SMALL, write_checkpoint
from baton.bench.cluster import load
from baton.bench.cluster.load import Load
from baton.bench.contract import percentile, summarise
from baton.deploy.cluster.cluster import Cluster
from baton.deploy.cluster.config import ClusterConfig
from baton.engine.settings.config import EngineConfig
from baton.router.config import RouterConfig

INPUT_LEN, OUTPUT_LEN = 512, 8


def measure(requests: int, repeats: int, rng: random.Random) -> dict[str, float]:
    """Return prefill_to_decode_ms on small Granite, in medians over `repeats` rounds.

    A round is the median of `requests` requests, one at a time so that the rank is idle; _p90 is
    the 90th percentile.
    """
    shape = Load(requests, 1, INPUT_LEN, OUTPUT_LEN)
    with tempfile.TemporaryDirectory() as folder:
        model = write_checkpoint(Path(folder) / "granite-small", GRANITE_SMALL)
        always = RouterConfig(model, prefill_here=0)
        with Cluster(ClusterConfig(EngineConfig(model), always)) as cluster:
            rounds = [_round(cluster, shape, rng) for _ in range(repeats + 1)]
    return summarise(rounds[1:])  # the first compiles and connects


def _round(cluster: Cluster, shape: Load, rng: random.Random) -> dict[str, float]:
    cluster.router.flush_cache()
    prompts = shape.draw(rng, GRANITE_SMALL["vocab_size"])
    answers = load.play(cluster.address, shape, prompts)
    took = [answer.timings["prefill_to_decode_us"] / 1e3 for answer in answers]
    return {
        "prefill_to_decode_ms": median(took),
        "prefill_to_decode_ms_p90": percentile(took, 0.9),
    }
