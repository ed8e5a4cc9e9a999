"""A histogram that is cheap enough to be updated for each token."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class LatencyHistogram(Collector):
    """A histogram of seconds without labels, for use by a single thread.

    It exports what `prometheus_client.Histogram` exports, but takes no lock and finds the bucket
    by bisection.
    """

    def __init__(
        self, name: str, meaning: str, buckets: Sequence[float], registry: CollectorRegistry
    ) -> None:
        """buckets: upper bounds in seconds, ascending. An infinite bucket is added."""
        self._name = name
        self._meaning = meaning
        self._bounds = tuple(buckets)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, seconds: float, count: int = 1) -> None:
        """Record a duration, `count` times."""
        self._counts[bisect_left(self._bounds, seconds)] += count
        self._sum += seconds * count

    def collect(self) -> Iterable[Metric]:
        bounds = map(floatToGoString, (*self._bounds, float("inf")))
        family = HistogramMetricFamily(self._name, self._meaning)
        family.add_metric([], list(zip(bounds, accumulate(self._counts), strict=True)), self._sum)
        yield family
