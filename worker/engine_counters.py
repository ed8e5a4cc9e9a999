"""The engine's counters as Prometheus metrics."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from baton.core.drafts import DraftSource
from baton.engine.settings.counters import Counters, Depths


class EngineCounters(Collector):
    """A collector that exports each field of `Counters` as `baton_engine_<field>_total`, or as a
    histogram `baton_engine_<field>`, or, of drafts, by the name that it was declared with."""

    def __init__(self, labels: Mapping[str, str], registry: CollectorRegistry) -> None:
        """labels: of every metric."""
        self._labels = dict(labels)
        self.newest = Counters()
        registry.register(self)

    def update(self, counters: Counters) -> None:
        """Export `counters` from now on. They must be a copy: the engine counts in its own."""
        self.newest = counters

    def collect(self) -> Iterable[Metric]:
        for each in fields(Counters):
            if each.metadata.get("histogram"):
                yield self._histogram(each.name, each.metadata["meaning"])
            elif "drafts" in each.metadata:
                yield self._of_drafts(each.name, each.metadata["meaning"], each.metadata["drafts"])
            else:
                yield self._counter(each.name, each.metadata["meaning"])

    def _counter(self, name: str, meaning: str) -> Metric:
        family = CounterMetricFamily(f"baton_engine_{name}", meaning, labels=list(self._labels))
        value: float = vars(self.newest)[name]
        family.add_metric(list(self._labels.values()), value)
        return family

    def _of_drafts(self, name: str, meaning: str, metric: str) -> Metric:
        """Make a counter with a series for each proposer of drafts and each position."""
        labels = [*self._labels, "proposer", "position"]
        family = CounterMetricFamily(f"baton_engine_{metric}", meaning, labels=labels)
        depths: Depths = vars(self.newest)[name]
        for proposer, counts in zip(DraftSource, depths, strict=True):
            for position, count in enumerate(counts):
                values = [*self._labels.values(), proposer.value, str(position)]
                family.add_metric(values, count)
        return family

    def _histogram(self, name: str, meaning: str) -> Metric:
        """Make a histogram of lengths from how many there were of 1, 2, 3 …"""
        counts: tuple[int, ...] = vars(self.newest)[name]
        buckets = [
            (str(float(length)), float(below)) for length, below in enumerate(accumulate(counts), 1)
        ]
        buckets.append(("+Inf", float(sum(counts))))
        family = HistogramMetricFamily(f"baton_engine_{name}", meaning, labels=list(self._labels))
        total = sum(length * count for length, count in enumerate(counts, 1))
        family.add_metric(list(self._labels.values()), buckets, total)
        return family
