"""The cheap histograms export what prometheus_client's own do."""

import random

from prometheus_client import CollectorRegistry, Histogram, generate_latest

from baton.router.latency_histogram import LatencyHistogram, PartedHistogram

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
    _assert_equal(ours, theirs)


def test_parts_count_as_prometheus_clients_labels_do() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    cheap = PartedHistogram("seconds", "What.", BOUNDS, ours, ("wait", "work"))
    own = Histogram("seconds", "What.", ("part",), registry=theirs, buckets=BOUNDS)
    for part, seconds in (("wait", 0.1), ("work", 0.0015), ("wait", 3.0)):
        cheap.parts[part].observe(seconds)
        own.labels(part).observe(seconds)
    _assert_equal(ours, theirs)


def _assert_equal(ours: CollectorRegistry, theirs: CollectorRegistry) -> None:
    assert _numbers(ours).keys() == _numbers(theirs).keys()
    for name, number in _numbers(theirs).items():
        assert abs(_numbers(ours)[name] - number) < 1e-9, name


def _numbers(registry: CollectorRegistry) -> dict[str, float]:
    lines = generate_latest(registry).decode().splitlines()
    shown = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name: float(number) for name, number in shown if not name.startswith("seconds_created")}
