"""The cheap histogram exports what prometheus_client's own does."""

import random

from prometheus_client import CollectorRegistry, Histogram, generate_latest

from baton.router.latency_histogram import LatencyHistogram

BOUNDS = (0.001, 0.002, 0.5, 1.0)


def test_it_counts_as_prometheus_clients_own_does() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    cheap = LatencyHistogram("seconds", "What.", BOUNDS, ours)
    own = Histogram("seconds", "What.", registry=theirs, buckets=BOUNDS)
    for _ in range(200):
        seconds = rng.choice((*BOUNDS, 0.0, rng.uniform(0, 2)))
        count = rng.randrange(1, 4)
        cheap.observe(seconds, count)
        for _ in range(count):
            own.observe(seconds)
    assert _numbers(ours).keys() == _numbers(theirs).keys()
    for name, number in _numbers(theirs).items():
        assert abs(_numbers(ours)[name] - number) < 1e-9, name


def _numbers(registry: CollectorRegistry) -> dict[str, float]:
    lines = generate_latest(registry).decode().splitlines()
    shown = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name: float(number) for name, number in shown if not name.startswith("seconds_created")}
