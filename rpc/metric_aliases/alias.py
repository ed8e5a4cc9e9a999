"""One metric under another server's name."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.core import Metric

from baton.rpc.metric_aliases.figures import Figures, Latency

Samples = Iterable[tuple[Mapping[str, str], float]]
"""The labels and the value of each sample."""
HISTOGRAM_PARTS = ("_bucket", "_sum", "_count")


@dataclass(frozen=True)
class Alias:
    """A row of the table of aliases."""

    name: str  # as a scrape shows it, that of a counter with _total
    kind: str  # counter, gauge or histogram
    meaning: str
    samples: Callable[[Figures], Samples]  # of a counter or a gauge
    latency: Latency | None = None  # of a histogram
    labels: tuple[str, ...] = ()  # besides those of every metric

    @property
    def on_worker(self) -> bool:
        """True if workers have it too, not routers alone."""
        return self.latency in {None, Latency.QUEUE, Latency.PREFILL}

    def metric(self, figures: Figures, common: Mapping[str, str]) -> Metric:
        """Return the metric with its samples; without any where the process has no such numbers.

        common: labels of every sample.
        """
        family = Metric(self.name.removesuffix("_total"), self.meaning, self.kind)
        for labels, value in self.samples(figures):
            family.add_sample(self.name, {**common, **labels}, value)
        if self.latency is not None and self.latency in figures.served.latencies:
            for sample in figures.served.latencies[self.latency].samples:
                part = next((each for each in HISTOGRAM_PARTS if sample.name.endswith(each)), None)
                if part is not None:  # not the moment of its creation
                    bound = {"le": sample.labels["le"]} if part == "_bucket" else {}
                    family.add_sample(self.name + part, {**common, **bound}, sample.value)
        return family


def counter(name: str, meaning: str, value: Callable[[Figures], float]) -> Alias:
    """Make a row of a counter without labels of its own."""
    return Alias(name, "counter", meaning, lambda figures: [({}, value(figures))])


def gauge(name: str, meaning: str, value: Callable[[Figures], float]) -> Alias:
    """Make a row of a gauge without labels of its own."""
    return Alias(name, "gauge", meaning, lambda figures: [({}, value(figures))])


def histogram(name: str, meaning: str, latency: Latency) -> Alias:
    """Make a row of a histogram of seconds."""
    return Alias(name, "histogram", meaning, lambda figures: (), latency)


def share(part: float, whole: float) -> float:
    """Return the share of a part; 0 of nothing."""
    return part / whole if whole else 0.0
