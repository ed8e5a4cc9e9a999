"""The values of a process's own metrics."""

from prometheus_client import Counter
from prometheus_client.core import Metric
from prometheus_client.registry import Collector


def by_label(counter: Counter, label: str) -> dict[str, int]:
    """Return a counter of things by the value of a label, summed over its other labels."""
    found: dict[str, int] = {}
    for sample in only(counter).samples:
        if sample.name.endswith("_total"):  # not the moment of its creation
            value = sample.labels[label]
            found[value] = found.get(value, 0) + int(sample.value)
    return found


def value_of(counter: Counter) -> int:
    """Return a counter without labels."""
    return next(int(each.value) for each in only(counter).samples if each.name.endswith("_total"))


def only(collector: Collector) -> Metric:
    """Return the one metric of a collector."""
    (metric,) = collector.collect()
    return metric


def with_label(histogram: Collector, label: str, value: str) -> Metric:
    """Return a histogram's series of one value of a label."""
    whole = only(histogram)
    part = Metric(whole.name, whole.documentation, whole.type)
    part.samples = [sample for sample in whole.samples if sample.labels[label] == value]
    return part
