"""The creation of a router's metrics."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge

from baton.router.latency_histogram import LatencyHistogram, PartedHistogram

# Three buckets a decade from 100 us to 500 s: a small model's whole decode step is 1 ms.
BUCKETS = tuple(round(step * 10.0**e, 6) for e in range(-4, 3) for step in (1, 2, 5))


class RouterMetricFactory:
    """A registry, and the prefix that every metric in it has."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

    def counter(self, name: str, meaning: str, *labels: str) -> Counter:
        """Make a counter; it is exported as baton_router_<name>_total."""
        return Counter(f"baton_router_{name}", meaning, labels, registry=self.registry)

    def gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        """Make a gauge; it is exported as baton_router_<name>."""
        return Gauge(f"baton_router_{name}", meaning, labels, registry=self.registry)

    def histogram(self, name: str, meaning: str) -> LatencyHistogram:
        """Make a histogram of durations; it is exported as baton_router_<name>_seconds."""
        return LatencyHistogram(f"baton_router_{name}_seconds", meaning, BUCKETS, self.registry)

    def parted(self, name: str, meaning: str, parts: Sequence[str]) -> PartedHistogram:
        """Make one of a duration's parts, by label `part`."""
        return PartedHistogram(
            f"baton_router_{name}_seconds", meaning, BUCKETS, self.registry, parts
        )
