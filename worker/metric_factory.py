"""The creation of a worker's metrics."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

# From 100 us, a factor of 10 ** (1/4) apart: fifteen of them lie under 5 ms or near it, where a
# small model's steps and hand-offs are.
BUCKETS = tuple(round(1e-4 * 10 ** (step / 4), 7) for step in range(25))


class MetricFactory:
    """A registry, and the labels that every metric in it carries."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self.registry = CollectorRegistry()
        self.labels = dict(labels)

    def counter(self, name: str, meaning: str, *labels: str) -> Counter:
        """Make a counter; it is exported as baton_worker_<name>_total."""
        return Counter(
            f"baton_worker_{name}", meaning, (*self.labels, *labels), registry=self.registry
        )

    def gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        """Make a gauge; it is exported as baton_worker_<name>."""
        return Gauge(
            f"baton_worker_{name}", meaning, (*self.labels, *labels), registry=self.registry
        )

    def histogram(self, name: str, meaning: str) -> Histogram:
        """Make a histogram of durations; it is exported as baton_worker_<name>_seconds."""
        return Histogram(
            f"baton_worker_{name}_seconds",
            meaning,
            tuple(self.labels),
            registry=self.registry,
            buckets=BUCKETS,
        ).labels(**self.labels)
