"""Ten times the load that a cluster can bear, and a key that floods beside another.

The model has weights enough that a step of eight rows costs little more than one of a single row,
as on the devices that serve: with a tiny one, the flood's rows alone would take half of the time.
"""

import random
from collections.abc import Iterator
from statistics import median

import pytest
from chaos.load_client import Counts, Spec, counts_of, start_load

from baton.api.access.keys import Key, KeyScope, digest_of, new_key, write_keys
from baton.bench.checkpoints import HYBRID_191M, write_checkpoint
from baton.deploy.cluster.cluster import Cluster
from baton.deploy.cluster.config import ClusterConfig
from baton.engine.settings.config import EngineConfig
from baton.router.config import RouterConfig

pytestmark = pytest.mark.chaos

AT_ONCE = 8  # requests that the rank runs
PROMPT, ANSWER = 32, 32
KEYS = {name: new_key() for name in ("ada", "ben")}
TIMEOUT_S = 20.0
GOODPUT = 0.95
LATENCY = 1.5


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    model = write_checkpoint(tmp_path_factory.mktemp("m") / "model", HYBRID_191M)
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    scopes = frozenset({KeyScope.INFER})
    write_keys(file, [Key(name, digest_of(text), scopes) for name, text in KEYS.items()])
    engine = EngineConfig(model, max_running=AT_ONCE, memory_bytes=2 << 30)
    with Cluster(ClusterConfig(engine, RouterConfig(model, api_keys=file))) as cluster:
        yield cluster


def spec(cluster: Cluster, seconds: float, key: str, **more: object) -> Spec:
    host, port = cluster.http_url.removeprefix("http://").split(":")
    prompt = [random.randrange(3, 500) for _ in range(PROMPT)]
    body = {"prompt": prompt, "max_tokens": ANSWER, "ignore_eos": True, "timeout": TIMEOUT_S}
    return Spec(host, int(port), body, seconds, key=KEYS[key], **more)  # type: ignore[arg-type]


def played(load: Spec) -> Counts:
    return counts_of(start_load(load), load.seconds + 60)


def test_ten_times_the_load_costs_no_goodput(cluster: Cluster) -> None:
    """Peaks before and after, because the machine may be busy with other things."""
    played(spec(cluster, 5, "ada", at_once=2 * AT_ONCE))
    before = played(spec(cluster, 20, "ada", at_once=2 * AT_ONCE))
    rate = 10 * before.done / before.seconds
    beyond = played(spec(cluster, 60, "ada", per_second=rate))
    after = played(spec(cluster, 20, "ada", at_once=2 * AT_ONCE))
    peaks = [each.tokens / each.seconds for each in (before, after)]
    goodput = beyond.tokens / beyond.seconds
    print(
        f"peaks {peaks[0]:.0f} and {peaks[1]:.0f} tokens/s; at {rate:.0f} requests/s "
        f"{goodput:.0f} tokens/s, {goodput / (sum(peaks) / 2):.3f} of the mean peak; "
        f"{beyond.by_status}; latency {median(beyond.latencies_s):.2f} s, at most "
        f"{max(beyond.latencies_s):.2f} s; Retry-After {min(beyond.retry_after_s)} to "
        f"{max(beyond.retry_after_s)} s"
    )
    assert set(beyond.by_status) <= {"200", "429"}, "one that was admitted was not in time"
    assert max(beyond.latencies_s) < TIMEOUT_S
    assert goodput >= GOODPUT * sum(peaks) / 2


def test_a_flood_of_one_key_does_not_slow_another(cluster: Cluster) -> None:
    def mine(seconds: float) -> Counts:
        return played(spec(cluster, seconds, "ben", at_once=1))

    mine(3)
    before = mine(15)
    flood = start_load(spec(cluster, 45, "ada", at_once=10 * AT_ONCE, patient=True))
    mine(5)
    beside = mine(30)
    flooded = counts_of(flood, 120)
    after = mine(15)
    alone = median([*before.latencies_s, *after.latencies_s])
    ratio = median(beside.latencies_s) / alone
    worst = sorted(beside.latencies_s)[int(0.95 * len(beside.latencies_s))]
    first = median(before.first_token_s), median(beside.first_token_s), median(after.first_token_s)
    print(
        f"first token before, beside, after {first[0]:.3f}, {first[1]:.3f}, {first[2]:.3f} s; "
        f"alone {alone:.3f} s, beside the flood {median(beside.latencies_s):.3f} s "
        f"({ratio:.2f} times; 95 %: {worst:.3f} s), of which {median(beside.waited_s):.3f} s at "
        f"the router; the flood's {median(flooded.waited_s):.3f} s there; {beside.by_status}; "
        f"flood {flooded.by_status}, {flooded.tokens / flooded.seconds:.0f} tokens/s"
    )
    assert set(beside.by_status) == {"200"}
    assert ratio <= LATENCY
