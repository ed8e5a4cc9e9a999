"""A histogram of seconds that is cheap enough to be told of every token."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class LatencyHistogram(Collector):
    """As `prometheus_client.Histogram` without labels, but written and read by one thread alone:
    it takes no lock, and finds its bucket by bisection."""

    def __init__(
        self, name: str, what: str, buckets: Sequence[float], registry: CollectorRegistry
    ) -> None:
        """buckets: upper bounds in seconds, ascending; what is above them all is counted too."""
        self._name = name
        self._what = what
        self._bounds = tuple(buckets)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, seconds: float, count: int = 1) -> None:
        """`count` times."""
        self._counts[bisect_left(self._bounds, seconds)] += count
        self._sum += seconds * count

    def collect(self) -> Iterable[Metric]:
        bounds = map(floatToGoString, (*self._bounds, float("inf")))
        family = HistogramMetricFamily(self._name, self._what)
        family.add_metric([], list(zip(bounds, accumulate(self._counts), strict=True)), self._sum)
        yield family
