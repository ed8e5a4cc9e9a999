"""A process's numbers under the metric names of other servers."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from baton.core.metric_dialect import MetricDialect
from baton.rpc.metric_aliases.alias import Alias
from baton.rpc.metric_aliases.figures import Figures
from baton.rpc.metric_aliases.sglang import SGLANG
from baton.rpc.metric_aliases.vllm import VLLM

ALIASES: Mapping[MetricDialect, Sequence[Alias]] = {
    MetricDialect.VLLM: VLLM,
    MetricDialect.SGLANG: SGLANG,
}
# vLLM numbers the engines behind one API server, and its dashboards select by the number.
_COMMON: Mapping[MetricDialect, Mapping[str, str]] = {
    MetricDialect.VLLM: {"engine": "0"},
    MetricDialect.SGLANG: {},
}


class AliasCollector(Collector):
    """A collector of the aliases of some dialects. The numbers are asked for at each scrape."""

    def __init__(
        self,
        dialects: Iterable[MetricDialect],
        model: str,
        figures: Callable[[], Figures],
        registry: CollectorRegistry,
    ) -> None:
        """model: the label `model_name` of every sample."""
        self._figures = figures
        self._rows = [
            (alias, {"model_name": model, **_COMMON[dialect]})
            for dialect in dialects
            for alias in ALIASES[dialect]
        ]
        if self._rows:
            registry.register(self)

    def collect(self) -> Iterable[Metric]:
        figures = self._figures()
        metrics = (alias.metric(figures, common) for alias, common in self._rows)
        return [metric for metric in metrics if metric.samples]
