"""Histograms that are cheap enough to be updated for each token."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class LatencySeries:
    """The durations of one series, for use by a single thread: no lock is taken."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """bounds: upper ones of buckets, in seconds, ascending. An infinite bucket is added."""
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        """Record a duration, `count` times."""
        self._counts[bisect_left(self._bounds, seconds)] += count
        self._sum += seconds * count

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        """Export the series under values of the family's labels."""
        bounds = map(floatToGoString, (*self._bounds, float("inf")))
        family.add_metric(
            labels, list(zip(bounds, accumulate(self._counts), strict=True)), self._sum
        )


class LatencyHistogram(LatencySeries, Collector):
    """A histogram of seconds without labels. It exports what `prometheus_client.Histogram` does."""

    def __init__(
        self, name: str, meaning: str, bounds: Sequence[float], registry: CollectorRegistry
    ) -> None:
        super().__init__(bounds)
        self._name = name
        self._meaning = meaning
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._meaning)
        self.add_to(family, [])
        yield family


class PartedHistogram(Collector):
    """A histogram of seconds with one label, `part`, whose values are known."""

    def __init__(
        self,
        name: str,
        meaning: str,
        bounds: Sequence[float],
        registry: CollectorRegistry,
        parts: Sequence[str],
    ) -> None:
        self._name = name
        self._meaning = meaning
        self.parts = {part: LatencySeries(bounds) for part in parts}
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._meaning, labels=["part"])
        for part, series in self.parts.items():
            series.add_to(family, [part])
        yield family
