"""The forms of PromQL that the dashboards use. `$job` is the chosen cluster."""

from collections.abc import Sequence
from dataclasses import dataclass

PERCENTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True)
class Query:
    """One expression of a panel."""

    expr: str
    legend: str = ""  # a template such as {{worker}}


def of(metric: str, *matchers: str) -> str:
    """Select a metric of the chosen cluster."""
    matched = ", ".join(['job="$job"', *matchers])
    return f"{metric}{{{matched}}}"


def rate(metric: str, *matchers: str, by: str = "") -> str:
    """Return the sum of a counter's rates, over all labels but `by`."""
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} (rate({of(metric, *matchers)}[$__rate_interval]))"


def percentiles(metric: str, *matchers: str, which: Sequence[float] = PERCENTILES) -> list[Query]:
    """Return the percentiles of a histogram over all its series."""
    buckets = rate(f"{metric}_bucket", *matchers, by="le")
    return [Query(f"histogram_quantile({p}, {buckets})", f"p{p * 100:g}") for p in which]


def percentile_by(metric: str, by: str, p: float, *matchers: str) -> Query:
    """Return one percentile of a histogram for each value of a label."""
    buckets = rate(f"{metric}_bucket", *matchers, by=f"{by}, le")
    return Query(f"histogram_quantile({p}, {buckets})", f"{{{{{by}}}}}")


def mean_parts(metric: str) -> list[Query]:
    """Return the mean of each part."""
    parts, count = rate(f"{metric}_sum", by="part"), rate(f"{metric}_count", by="part")
    return [Query(f"{parts}\n  / {count}", "{{part}}")]


def by_worker(metric: str, *matchers: str) -> list[Query]:
    return [Query(f"sum by (worker) ({of(metric, *matchers)})", "{{worker}}")]


def rate_by(metric: str, by: str, *matchers: str) -> list[Query]:
    legend = " ".join(f"{{{{{label.strip()}}}}}" for label in by.split(","))
    return [Query(rate(metric, *matchers, by=by), legend)]


def in_time(metric: str, seconds: float) -> str:
    return rate(f"baton_router_{metric}_seconds_bucket", f'le="{seconds}"')
