"""The engine's counters as Prometheus metrics."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from baton.core.drafts import DraftSource
from baton.engine.settings.counters import Counters


class EngineCounters(Collector):
    """A collector that exports each field of `Counters` as `baton_engine_<field>_total`, or as a
    histogram `baton_engine_<field>`."""

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
            elif "label" in each.metadata:
                yield self._by_proposer(each.name, each.metadata["meaning"], each.metadata["label"])
            else:
                yield self._counter(each.name, each.metadata["meaning"])

    def _counter(self, name: str, meaning: str) -> Metric:
        family = CounterMetricFamily(f"baton_engine_{name}", meaning, labels=list(self._labels))
        value: float = vars(self.newest)[name]
        family.add_metric(list(self._labels.values()), value)
        return family

    def _by_proposer(self, name: str, meaning: str, label: str) -> Metric:
        """Make a counter with a series for each proposer of drafts."""
        labels = [*self._labels, label]
        family = CounterMetricFamily(f"baton_engine_{name}", meaning, labels=labels)
        counts: tuple[int, ...] = vars(self.newest)[name]
        for proposer, count in zip(DraftSource, counts, strict=True):
            family.add_metric([*self._labels.values(), proposer.value], count)
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
