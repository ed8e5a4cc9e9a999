"""Prometheus counters."""

from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families


def total(pages: Iterable[str], name: str, **labels: str) -> float:
    """Sum all samples of `name` that have `labels`. pages: in Prometheus' text format."""
    return sum(
        sample.value
        for page in pages
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
