"""The engine's own sums as Prometheus metrics."""

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from baton.engine.counters import Counters


class EngineCounters(Collector):
    """Shows the newest `Counters` that it was given: they only ever grow."""

    def __init__(self, labels: Mapping[str, str], registry: CollectorRegistry) -> None:
        """labels: of every metric."""
        self._labels = dict(labels)
        self._newest = Counters()
        registry.register(self)

    def update(self, counters: Counters) -> None:
        """A copy: the engine's thread goes on counting in its own."""
        self._newest = counters

    def collect(self) -> Iterable[Metric]:
        now = self._newest
        snapshots = {
            "written": now.snapshots_written,
            "donated": now.snapshots_donated,
            "skipped": now.snapshots_skipped,
            "evicted": now.snapshots_evicted,
        }
        hits = {
            "kv": now.hit_tokens_kv,
            "state": now.hit_tokens_state,
            "transfer": now.hit_tokens_transfer,
        }
        yield self._family("snapshots", "Snapshots of recurrent state", snapshots, "event")
        yield self._family(
            "prefix_hit_tokens",
            "Prompt tokens found in the prefix cache: how far KV alone went, how far state did, "
            "and whose KV no hand-off had to bring",
            hits,
            "by",
        )
        yield self._total("prompt_tokens", "Prompt tokens of admitted requests", now.prompt_tokens)
        yield self._total(
            "adopted_tokens", "Prompt tokens of hand-offs taken in", now.adopted_tokens
        )
        yield self._total(
            "branch_points", "Admissions whose KV matched deeper than state", now.branch_points
        )
        yield self._total("pages_evicted", "Pages that the cache gave up", now.pages_evicted)
        yield self._total("preemptions", "Requests that gave memory back", now.preemptions)
        yield self._total(
            "schedule_seconds", "Host time spent on planning steps", now.schedule_seconds
        )
        yield self._total("schedule_steps", "Steps that were planned", now.steps)

    def _total(self, name: str, what: str, value: float) -> Metric:
        family = CounterMetricFamily(f"baton_{name}", what, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _family(self, name: str, what: str, values: Mapping[str, float], label: str) -> Metric:
        family = CounterMetricFamily(f"baton_{name}", what, labels=[*self._labels, label])
        for of, value in values.items():
            family.add_metric([*self._labels.values(), of], value)
        return family
