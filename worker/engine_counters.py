"""The engine's counters as Prometheus metrics."""

from collections.abc import Iterable, Mapping
from dataclasses import fields

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from baton.engine.counters import Counters


class EngineCounters(Collector):
    """A collector that exports each field of `Counters` as `baton_engine_<field>_total`."""

    def __init__(self, labels: Mapping[str, str], registry: CollectorRegistry) -> None:
        """labels: of every metric."""
        self._labels = dict(labels)
        self._newest = Counters()
        registry.register(self)

    def update(self, counters: Counters) -> None:
        """Export `counters` from now on. They must be a copy: the engine counts in its own."""
        self._newest = counters

    def collect(self) -> Iterable[Metric]:
        for each in fields(Counters):
            family = CounterMetricFamily(
                f"baton_engine_{each.name}", each.metadata["meaning"], labels=list(self._labels)
            )
            value: float = vars(self._newest)[each.name]
            family.add_metric(list(self._labels.values()), value)
            yield family
