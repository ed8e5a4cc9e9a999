"""The series of a Prometheus registry, and by how much they have grown."""

from prometheus_client import CollectorRegistry

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
"""The value of each series, by its name and its sorted labels."""


def samples(registry: CollectorRegistry, without: tuple[str, ...] = ()) -> Samples:
    """Return the values of all series but the moments of their creation, without some labels."""
    return {
        (s.name, tuple(sorted((k, v) for k, v in s.labels.items() if k not in without))): s.value
        for family in registry.collect()
        for s in family.samples
        if not s.name.endswith("_created")
    }


def grown(before: Samples, after: Samples) -> dict[str, float]:
    """Return what has changed, as `name{label=value,...}`, without the buckets of histograms."""
    return {
        name + ("{" + ",".join(f"{k}={v}" for k, v in labels) + "}" if labels else ""): round(
            value - before.get((name, labels), 0.0), 9
        )
        for (name, labels), value in after.items()
        if value != before.get((name, labels), 0.0) and not name.endswith("_bucket")
    }
