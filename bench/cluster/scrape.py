"""Prometheus counters, read over HTTP."""

import urllib.request
from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families

DEADLINE_S = 5.0


def total(addresses: Iterable[str], name: str, **labels: str) -> float:
    """Sum all samples of `name` that have `labels`, over the /metrics of `addresses`."""
    return sum(
        sample.value
        for address in addresses
        for family in text_string_to_metric_families(_text(address))
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def _text(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=DEADLINE_S) as reply:
        body: bytes = reply.read()
    return body.decode()
